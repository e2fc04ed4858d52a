// Cases of the official Rust client: ENDPOINT PREFIX [case ...]. Names as in python_cases.py; prints one JSON object per
// case. The client 5.0.0 has producers and simple consumers: no push consumer, recall or change of invisible time. It is
// without TLS here, its default.
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};

type Outcome = Result<(String, usize), String>;

struct Names {
    endpoint: String,
    prefix: String,
}

impl Names {
    fn name(&self, part: &str) -> String {
        format!("{}{}", self.prefix, part)
    }

    fn options(&self) -> ClientOption {
        let mut options = ClientOption::default();
        options.set_access_url(self.endpoint.clone());
        options.set_enable_tls(false);
        options.set_timeout(Duration::from_secs(5));
        // Its deadline is the polling time alone, and a proxy does not poll for less than 5 s.
        options.set_long_polling_timeout(Duration::from_secs(10));
        options
    }

    async fn producer(&self, topic: &str) -> Result<Producer, String> {
        let mut options = ProducerOption::default();
        options.set_topics(vec![self.name(topic)]);
        let mut made = Producer::new(options, self.options()).map_err(text)?;
        made.start().await.map_err(text)?;
        Ok(made)
    }

    /// Receives and acknowledges; the bodies with their tags, and how many messages came more than once.
    async fn receive(
        &self, topic: &str, group: &str, count: usize, expression: FilterExpression,
    ) -> Result<(Vec<String>, usize), String> {
        let mut options = SimpleConsumerOption::default();
        options.set_topics(vec![self.name(topic)]);
        options.set_consumer_group(self.name(group));
        let mut consumer = SimpleConsumer::new(options, self.options()).map_err(text)?;
        consumer.start().await.map_err(text)?;
        let mut found: BTreeMap<String, String> = BTreeMap::new();
        let mut order = Vec::new();
        let mut repeated = 0;
        let end = Instant::now() + Duration::from_secs(60);
        while found.len() < count && Instant::now() < end {
            let batch = consumer
                .receive_with(self.name(topic), &expression, 16, Duration::from_secs(30))
                .await
                .map_err(text)?;
            for message in batch {
                let body = String::from_utf8_lossy(message.body()).to_string();
                consumer.ack(&message).await.map_err(text)?;
                if found.insert(message.message_id().to_string(), body.clone()).is_some() {
                    repeated += 1;
                } else {
                    order.push(body);
                }
            }
        }
        consumer.shutdown().await.map_err(text)?;
        if order.len() == count { Ok((order, repeated)) } else { Err(format!("{order:?}")) }
    }
}

fn text(error: impl std::fmt::Debug) -> String {
    format!("{error:?}")
}

fn by_tag(tag: &str) -> FilterExpression {
    FilterExpression::new(FilterType::Tag, tag)
}

fn expect(holds: bool, seen: impl std::fmt::Debug, repeated: usize) -> Outcome {
    let seen = format!("{seen:?}");
    if holds { Ok((seen, repeated)) } else { Err(format!("unexpected: {seen}")) }
}

async fn normal(names: Arc<Names>) -> Outcome {
    let producer = names.producer("Normal").await?;
    let message = MessageBuilder::builder()
        .set_topic(names.name("Normal"))
        .set_body(b"n1".to_vec())
        .set_tag("TagA")
        .set_keys(vec!["k1", "k2"])
        .set_properties(HashMap::from([("color", "blue")]))
        .build()
        .map_err(text)?;
    producer.send(message).await.map_err(text)?;
    let (found, repeated) = names.receive("Normal", "Plain", 1, by_tag("TagA")).await?;
    producer.shutdown().await.map_err(text)?;
    expect(found == ["n1"], found, repeated)
}

async fn filters(names: Arc<Names>) -> Outcome {
    let producer = names.producer("Normal").await?;
    for number in 0..6 {
        let message = MessageBuilder::builder()
            .set_topic(names.name("Normal"))
            .set_body(format!("f{number}").into_bytes())
            .set_tag(if number % 2 == 0 { "Even" } else { "Odd" })
            .set_properties(HashMap::from([("number", number.to_string())]))
            .build()
            .map_err(text)?;
        producer.send(message).await.map_err(text)?;
    }
    let (mut even, first) = names.receive("Normal", "ByTag", 3, by_tag("Even")).await?;
    let sql = FilterExpression::new(FilterType::Sql, "number BETWEEN 2 AND 4");
    let (mut between, second) = names.receive("Normal", "BySql", 3, sql).await?;
    producer.shutdown().await.map_err(text)?;
    even.sort();
    between.sort();
    let holds = even == ["f0", "f2", "f4"] && between == ["f2", "f3", "f4"];
    expect(holds, (even, between), first + second)
}

async fn fifo(names: Arc<Names>) -> Outcome {
    let producer = names.producer("Fifo").await?;
    for number in 0..8 {
        let body = format!("o{number}").into_bytes();
        let message = MessageBuilder::fifo_message_builder(names.name("Fifo"), body, "one").build().map_err(text)?;
        producer.send(message).await.map_err(text)?;
    }
    let (found, repeated) = names.receive("Fifo", "Orderly", 8, by_tag("*")).await?;
    producer.shutdown().await.map_err(text)?;
    let expected: Vec<String> = (0..8).map(|number| format!("o{number}")).collect();
    expect(found == expected, found, repeated)
}

async fn delay(names: Arc<Names>) -> Outcome {
    let producer = names.producer("Delay").await?;
    let due = SystemTime::now() + Duration::from_secs(4);
    let seconds = due.duration_since(UNIX_EPOCH).map_err(text)?.as_secs() as i64;
    let message = MessageBuilder::delay_message_builder(names.name("Delay"), b"later".to_vec(), seconds)
        .build()
        .map_err(text)?;
    producer.send(message).await.map_err(text)?;
    let (_, repeated) = names.receive("Delay", "Waiting", 1, by_tag("*")).await?;
    producer.shutdown().await.map_err(text)?;
    let early = due.duration_since(SystemTime::now()).unwrap_or_default();
    let late = SystemTime::now().duration_since(due).unwrap_or_default();
    expect(early < Duration::from_millis(2100) && late < Duration::from_secs(60), (early, late), repeated)
}

async fn transaction(names: Arc<Names>) -> Outcome {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let notes = asked.clone();
    let mut options = ProducerOption::default();
    options.set_topics(vec![names.name("Trans")]);
    let mut producer = Producer::new_transaction_producer(
        options,
        names.options(),
        Box::new(move |_, message| {
            let body = String::from_utf8_lossy(message.body()).to_string();
            notes.lock().unwrap().push(body.clone());
            if body == "gone" { TransactionResolution::ROLLBACK } else { TransactionResolution::COMMIT }
        }),
    )
    .map_err(text)?;
    producer.start().await.map_err(text)?;
    for body in ["committed", "gone", "checked"] {
        let bytes = body.as_bytes().to_vec();
        let message = MessageBuilder::transaction_message_builder(names.name("Trans"), bytes).build().map_err(text)?;
        let open = producer.send_transaction_message(message).await.map_err(text)?;
        match body {
            "committed" => open.commit().await.map_err(text)?,
            "gone" => open.rollback().await.map_err(text)?,
            _ => {}
        }
    }
    let (mut found, repeated) = names.receive("Trans", "Transacted", 2, by_tag("*")).await?;
    producer.shutdown().await.map_err(text)?;
    found.sort();
    let asked = asked.lock().unwrap().clone();
    let holds = found == ["checked", "committed"] && asked.iter().any(|body| body == "checked");
    expect(holds, (found, asked), repeated)
}

async fn refusals(names: Arc<Names>) -> Outcome {
    let unknown = names.producer("Unknown").await.err();
    let producer = names.producer("Normal").await?;
    let message = MessageBuilder::fifo_message_builder(names.name("Normal"), b"x".to_vec(), "g").build().map_err(text)?;
    let wrong = producer.send(message).await.err().map(text);
    producer.shutdown().await.map_err(text)?;
    expect(unknown.is_some() && wrong.is_some(), (unknown, wrong), 0)
}

async fn run(name: &'static str, work: impl Future<Output = Outcome>) {
    let started = Instant::now();
    let outcome = work.await;
    let seconds = started.elapsed().as_secs_f64();
    let (ok, seen, repeated) = match outcome {
        Ok((seen, repeated)) => (true, seen, repeated),
        Err(seen) => (false, seen, 0),
    };
    let seen = seen.replace('\\', "/").replace('"', "'").replace('\n', " ");
    println!("{{\"case\": \"{name}\", \"ok\": {ok}, \"seen\": \"{seen}\", \"repeated\": {repeated}, \"seconds\": {seconds:.1}}}");
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let names = Arc::new(Names { endpoint: arguments[1].clone(), prefix: arguments[2].clone() });
    let wanted = |name: &str| arguments.len() == 3 || arguments[3..].iter().any(|one| one == name);
    let mut running = Vec::new();
    macro_rules! cases {
        ($($name:ident),*) => {
            $(if wanted(stringify!($name)) {
                running.push(tokio::spawn(run(stringify!($name), $name(names.clone()))));
            })*
        };
    }
    cases!(normal, filters, fifo, delay, transaction, refusals);
    for one in running {
        let _ = one.await;
    }
}
