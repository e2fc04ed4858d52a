// Cases of the official Node client: ENDPOINT PREFIX [case ...]. The same as python_cases.py, with the same names, all at
// once; prints one JSON object per case. Without TLS, the client's default, unless CASES_TLS is set:
// the client refuses a self-signed certificate.
'use strict';

const { existsSync } = require('node:fs');
const { Producer, SimpleConsumer, PushConsumer, ConsumeResult, FilterExpression } = require('rocketmq-client-nodejs');
const definitions = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const [ endpoints, prefix, ...wanted ] = process.argv.slice(2);
const quiet = { info() {}, warn() {}, error() {}, debug() {}, close() {} };
const accessKey = process.env.CASES_ACCESS_KEY;
const common = {
  endpoints,
  namespace: '',
  logger: quiet,
  requestTimeout: 5000,
  sslEnabled: process.env.CASES_TLS === '1',
  ...(accessKey ? { sessionCredentials: { accessKey, accessSecret: process.env.CASES_SECRET_KEY } } : {}),
};
const MINUTE = 60_000;

const pause = ms => new Promise(resolve => setTimeout(resolve, ms));

function check(holds, seen) {
  if (!holds) throw new Error(`unexpected: ${JSON.stringify(seen)}`);
}

const message = (topic, body, more = {}) => ({ topic: prefix + topic, body: Buffer.from(body), ...more });

async function withProducer(topic, work, more = {}) {
  const producer = new Producer({ ...common, topics: [ prefix + topic ], ...more });
  await producer.startup();
  try {
    return await work(producer);
  } finally {
    await producer.shutdown();
  }
}

async function withSimple(topic, group, expression, work) {
  const consumer = new SimpleConsumer({
    ...common,
    consumerGroup: prefix + group,
    subscriptions: new Map().set(prefix + topic, expression),
    awaitDuration: 5000,
  });
  await consumer.startup();
  try {
    return await work(consumer);
  } finally {
    await consumer.shutdown();
  }
}

// Receive and acknowledge; `repeated` counts messages that came more than once.
function receive(topic, group, count, expression, outcome) {
  return withSimple(topic, group, expression, async consumer => {
    const found = new Map();
    for (const end = Date.now() + MINUTE; found.size < count && Date.now() < end;) {
      for (const view of await consumer.receive(16, 30_000)) {
        await consumer.ack(view);
        if (found.has(view.messageId)) outcome.repeated++;
        found.set(view.messageId, view);
      }
    }
    const views = [ ...found.values() ];
    check(views.length === count, bodies(views));
    return views;
  });
}

const bodies = views => views.map(view => view.body.toString()).sort().join(' ');

// A push consumer that fails the first deliveries of each message.
async function collecting(topic, group, tag, fail, work) {
  const got = [];
  const consumer = new PushConsumer({
    ...common,
    consumerGroup: prefix + group,
    subscriptions: new Map().set(prefix + topic, tag),
    longPollingTimeout: 5000,
    messageListener: {
      async consume(view) {
        got.push(`${view.body}#${view.deliveryAttempt}`);
        return view.deliveryAttempt <= fail ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    },
  });
  await consumer.startup();
  try {
    await work(got);
  } finally {
    await consumer.shutdown();
  }
  return got;
}

async function until(got, count) {
  for (const end = Date.now() + MINUTE; got.length < count && Date.now() < end;) await pause(20);
  check(got.length >= count, got);
}

const cases = {
  async normal(outcome) {
    const sent = await withProducer('Normal', producer => producer.send(message('Normal', 'n1', {
      tag: 'TagA', keys: [ 'k1', 'k2' ], properties: new Map().set('color', 'blue'),
    })));
    const [ view ] = await receive('Normal', 'Plain', 1, 'TagA', outcome);
    check(view.messageId === sent.messageId && view.tag === 'TagA' && view.keys.length === 2, view);
    check(view.body.toString() === 'n1' && !view.corrupted && view.deliveryAttempt === 1, view);
    check(view.properties.get('color') === 'blue', view);
    return sent.messageId;
  },

  async filters(outcome) {
    await withProducer('Normal', async producer => {
      for (let number = 0; number < 6; number++) {
        await producer.send(message('Normal', `f${number}`, {
          tag: number % 2 ? 'Odd' : 'Even', properties: new Map().set('number', String(number)),
        }));
      }
    });
    const byTag = bodies(await receive('Normal', 'ByTag', 3, 'Even', outcome));
    const sql = new FilterExpression('number BETWEEN 2 AND 4', definitions.FilterType.SQL);
    const bySql = bodies(await receive('Normal', 'BySql', 3, sql, outcome));
    check(byTag === 'f0 f2 f4' && bySql === 'f2 f3 f4', [ byTag, bySql ]);
    return bySql;
  },

  async fifo() {
    const expected = [ ...Array(8).keys() ].map(number => `o${number}#1`);
    const got = await collecting('Fifo', 'Orderly', '*', 0, async seen => {
      await withProducer('Fifo', async producer => {
        for (let number = 0; number < 8; number++) {
          await producer.send(message('Fifo', `o${number}`, { messageGroup: 'one' }));
        }
        await until(seen, 8);
      });
    });
    check(got.join() === expected.join(), got);
    return got;
  },

  async delay(outcome) {
    const due = Date.now() + 4000;
    await withProducer('Delay', producer =>
      producer.send(message('Delay', 'later', { tag: 'Later', deliveryTimestamp: new Date(due) })));
    await receive('Delay', 'Waiting', 1, 'Later', outcome);
    const late = Date.now() - due;
    check(late >= -1100 && late < 60_000, late);
    return late;
  },

  // Of two delayed messages the first is recalled: the second alone is delivered.
  async recall(outcome) {
    return await withProducer('Delay', async producer => {
      const send = (body, ms) => producer.send(
        message('Delay', body, { tag: 'Recall', deliveryTimestamp: new Date(Date.now() + ms) }));
      await producer.send(message('Delay', 'first', { deliveryTimestamp: new Date() })); // connects
      const sent = await send('never', 6000);
      await send('after', 8000);
      const recalled = await producer.recallMessage(prefix + 'Delay', sent.recallHandle);
      check(recalled.messageId === sent.messageId, recalled);
      const found = bodies(await receive('Delay', 'Recalling', 1, 'Recall', outcome));
      check(found === 'after', found);
      return recalled.messageId;
    });
  },

  async transaction(outcome) {
    const { COMMIT, ROLLBACK } = definitions.TransactionResolution;
    const asked = [];
    const checker = {
      async check(view) {
        asked.push(view.body.toString());
        return view.body.toString() === 'gone' ? ROLLBACK : COMMIT;
      },
    };
    await withProducer('Trans', async producer => {
      for (const body of [ 'committed', 'gone', 'checked' ]) {
        const transaction = producer.beginTransaction();
        await producer.send(message('Trans', body), transaction);
        if (body === 'committed') await transaction.commit();
        if (body === 'gone') await transaction.rollback();
      }
      const found = bodies(await receive('Trans', 'Transacted', 2, '*', outcome));
      check(found === 'checked committed' && asked.includes('checked'), [ found, asked ]);
    }, { checker });
    return asked;
  },

  async change_invisible_duration() {
    const attempts = [];
    await withSimple('Normal', 'Changing', 'Change', async consumer => {
      await consumer.receive(16, 15_000); // the group starts here
      await withProducer('Normal', producer => producer.send(message('Normal', 'twice', { tag: 'Change' })));
      for (const end = Date.now() + MINUTE; attempts.length < 2 && Date.now() < end;) {
        for (const view of await consumer.receive(16, 30_000)) {
          attempts.push(view.deliveryAttempt);
          if (attempts.length === 1) await consumer.changeInvisibleDuration(view, 1000);
          else await consumer.ack(view);
        }
      }
    });
    check(attempts.join() === '1,2', attempts);
    return attempts;
  },

  async push_with_retry() {
    const got = await collecting('Normal', 'Retrying', 'Retry', 1, async seen => {
      await withProducer('Normal', async producer => {
        for (let number = 0; number < 3; number++) {
          await producer.send(message('Normal', `r${number}`, { tag: 'Retry' }));
        }
      });
      await until(seen, 6);
    });
    check(got.sort().join(' ') === 'r0#1 r0#2 r1#1 r1#2 r2#1 r2#2', got);
    return got;
  },

  async dead_letters() {
    const got = await collecting('Normal', 'Short', 'Dead', 99, async seen => {
      await withProducer('Normal', producer => producer.send(message('Normal', 'hopeless', { tag: 'Dead' })));
      await until(seen, 2);
      await pause(12_000); // a third delivery would come by now; the test looks for the dead letter
    });
    check(got.join(' ') === 'hopeless#1 hopeless#2', got);
    return got;
  },

  // An acknowledgement after the invisible time is refused, and the message comes again.
  async late_ack() {
    const attempts = [];
    let seen = '';
    await withSimple('Normal', 'Late', 'Late', async consumer => {
      await consumer.receive(16, 15_000); // the group starts here
      await withProducer('Normal', producer => producer.send(message('Normal', 'late', { tag: 'Late' })));
      for (const end = Date.now() + MINUTE; attempts.length < 2 && Date.now() < end;) {
        for (const view of await consumer.receive(16, 10_000)) {
          attempts.push(view.deliveryAttempt);
          if (attempts.length === 1) {
            await pause(10_500);
            seen = await refused(() => consumer.ack(view));
          } else {
            await consumer.ack(view);
          }
        }
      }
    });
    check(attempts.join() === '1,2', attempts);
    return `ack: ${seen}`;
  },

  async refusals() {
    const seen = {};
    const far = new Date(Date.now() + 2 * 86_400_000);
    await withProducer('Normal', async producer => {
      const sends = {
        'unknown topic': message('Unknown', 'x'),
        'wrong type': message('Normal', 'x', { messageGroup: 'g' }),
        'large body': message('Normal', 'x'.repeat(4 * 1024 * 1024 + 1)),
        'reserved property': message('Normal', 'x', { properties: new Map().set('TAGS', 't') }),
        'long message group': message('Fifo', 'x', { messageGroup: 'g'.repeat(64) }),
        'far delivery': message('Delay', 'x', { deliveryTimestamp: far }),
      };
      for (const [ name, one ] of Object.entries(sends)) seen[name] = await refused(() => producer.send(one));
      seen['recall handle'] = await refused(() => producer.recallMessage(prefix + 'Delay', 'junk'));
    });
    await withSimple('Normal', 'Refused', '*', async consumer => {
      seen['invisible time'] = await refused(() => consumer.receive(16, 1000));
    });
    const sql = new FilterExpression('number >', definitions.FilterType.SQL);
    await withSimple('Normal', 'RefusedSql', sql, async consumer => {
      seen.sql = await refused(() => consumer.receive(16, 15_000));
    });
    return Object.keys(seen).sort().map(name => `${name}: ${seen[name]}`).join('; ');
  },
};

// The code of the status, or what the client itself raised.
async function refused(work) {
  try {
    await work();
    return 'accepted';
  } catch (error) {
    return String(error.code || error.name);
  }
}

// Sends and receives until there is a file stop, whatever happens to proxies; then receives the rest. Only when named.
async function steady(outcome) {
  const until = Date.now() + Number(process.env.CASES_SECONDS) * 1000;
  const sent = new Set();
  const got = new Map();
  const failed = { sends: 0, receives: 0 };
  await withProducer('Normal', producer => withSimple('Normal', 'Plain', '*', async consumer => {
    let sending = true;
    const send = async () => {
      for (let number = 1; Date.now() < until && !existsSync('stop'); number++) {
        try {
          await producer.send(message('Normal', `s${number}`));
          sent.add(`s${number}`);
        } catch (error) {
          failed.sends++; // not acknowledged: it may be stored or not
        }
        await pause(10);
      }
      sending = false;
    };
    const sender = send();
    while (Date.now() < until + MINUTE && (sending || ![ ...sent ].every(body => got.has(body)))) {
      try {
        for (const view of await consumer.receive(16, 10_000)) {
          const body = view.body.toString();
          got.set(body, (got.get(body) || 0) + 1);
          await consumer.ack(view);
        }
      } catch (error) {
        failed.receives++; // what was not acknowledged comes again
        await pause(200);
      }
    }
    await sender;
  }));
  outcome.repeated = [ ...got.values() ].reduce((sum, count) => sum + count - 1, 0);
  check(sent.size && [ ...sent ].every(body => got.has(body)), [ sent.size, got.size, failed ]);
  return { sent: sent.size, failed };
}

if (wanted.includes('steady')) cases.steady = steady;

async function run(name) {
  const outcome = { case: name, ok: true, seen: null, repeated: 0 };
  const started = Date.now();
  try {
    outcome.seen = await cases[name](outcome);
  } catch (error) {
    outcome.ok = false;
    outcome.seen = String(error && error.stack || error);
  }
  outcome.seconds = (Date.now() - started) / 1000;
  process.stdout.write(JSON.stringify(outcome) + '\n');
}

Promise.all(Object.keys(cases).filter(name => !wanted.length || wanted.includes(name)).map(run))
  .then(() => process.exit(0)); // the client's own timers would hold the process
