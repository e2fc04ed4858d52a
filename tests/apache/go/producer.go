package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const callTimeout = 20 * time.Second

// sender is a started producer with the address it was given.
type sender struct {
	rocketmq.Producer
	namesrv []string
}

// transactor is a started transactional producer with its script.
type transactor struct {
	rocketmq.TransactionProducer
	listener *scriptedListener
}

func registerProducer(d *driver) {
	d.ops["producer.start"] = d.startProducer
	d.ops["producer.stop"] = d.stop
	d.ops["producer.send"] = d.send
	d.ops["producer.sendMany"] = d.sendMany
	d.ops["producer.sendBatch"] = d.sendBatch
	d.ops["producer.sendTransaction"] = d.sendTransaction
	d.ops["producer.request"] = d.sendRequest
	d.ops["query.publishQueues"] = func(r *request) (any, error) {
		s, err := lookup[*sender](d, r)
		if err != nil {
			return nil, err
		}
		return publishQueues(s.namesrv, r.Topic)
	}
}

func producerOptions(r *request) []producer.Option {
	o := r.Options
	list := []producer.Option{
		producer.WithGroupName(r.Group),
		producer.WithNameServer(servers(r)),
		producer.WithInstanceName(instance(r)),
		producer.WithVIPChannel(o.VIP),
		producer.WithQueueSelector(&scriptedSelector{
			byKey: producer.NewHashQueueSelector(),
			other: producer.NewRoundRobinQueueSelector(),
		}),
	}
	if o.Namespace != "" {
		list = append(list, producer.WithNamespace(o.Namespace))
	}
	if o.Retry != nil {
		list = append(list, producer.WithRetry(*o.Retry))
	}
	if o.SendTimeoutMs != 0 {
		list = append(list, producer.WithSendMsgTimeout(time.Duration(o.SendTimeoutMs)*time.Millisecond))
	}
	if o.CompressOver != 0 {
		list = append(list, producer.WithCompressMsgBodyOverHowmuch(o.CompressOver))
	}
	if r.AccessKey != "" {
		list = append(list, producer.WithCredentials(credentials(r)))
	}
	return list
}

func (d *driver) startProducer(r *request) (any, error) {
	started := object{"clientId": instance(r)}
	if r.Transactional {
		listener := &scriptedListener{driver: d, handle: r.Handle, defaults: r.Checks}
		p, err := rocketmq.NewTransactionProducer(listener, producerOptions(r)...)
		if err != nil {
			return nil, err
		}
		if err := p.Start(); err != nil {
			return nil, err
		}
		d.keep(r, &transactor{p, listener})
		return started, nil
	}
	p, err := rocketmq.NewProducer(producerOptions(r)...)
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	d.keep(r, &sender{p, servers(r)})
	return started, nil
}

func (d *driver) send(r *request) (any, error) {
	s, err := lookup[*sender](d, r)
	if err != nil {
		return nil, err
	}
	return s.sendOne(r, r.Message.build())
}

// sendMany sends one after the other, or keeps a window of async sends open.
func (d *driver) sendMany(r *request) (any, error) {
	s, err := lookup[*sender](d, r)
	if err != nil {
		return nil, err
	}
	results := make([]any, len(r.Messages))
	errs := make([]error, len(r.Messages))
	window := make(chan struct{}, 1)
	if r.Mode == "async" {
		window = make(chan struct{}, 64)
	}
	var group sync.WaitGroup
	for i, m := range buildAll(r.Messages) {
		window <- struct{}{}
		group.Add(1)
		go func() {
			results[i], errs[i] = s.sendOne(r, m)
			<-window
			group.Done()
		}()
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return results, nil
}

func (d *driver) sendBatch(r *request) (any, error) {
	s, err := lookup[*sender](d, r)
	if err != nil {
		return nil, err
	}
	messages := buildAll(r.Messages)
	if r.Queue != nil {
		for _, m := range messages {
			m.Queue = r.Queue.build()
		}
	}
	return s.deliver(r, messages...)
}

func (s *sender) sendOne(r *request, m *primitive.Message) (any, error) {
	if r.Queue != nil {
		m.Queue = r.Queue.build()
	}
	if r.Selector != nil {
		switch r.Selector.Kind {
		case "hash":
			m.WithShardingKey(fmt.Sprint(r.Selector.Arg))
		case "index":
			m.Queue = &primitive.MessageQueue{Topic: m.Topic, QueueId: int(r.Selector.Arg.(float64))}
		default:
			return nil, fmt.Errorf("the Go driver has no selector %s", r.Selector.Kind)
		}
	}
	return s.deliver(r, m)
}

func (s *sender) deliver(r *request, messages ...*primitive.Message) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout(r))
	defer cancel()
	switch r.Mode {
	case "oneway":
		return nil, s.SendOneWay(ctx, messages...)
	case "async":
		type outcome struct {
			result *primitive.SendResult
			err    error
		}
		// Room for two: the client calls back twice when the connection breaks.
		done := make(chan outcome, 2)
		err := s.SendAsync(ctx, func(_ context.Context, result *primitive.SendResult, err error) {
			done <- outcome{result, err}
		}, messages...)
		if err != nil {
			return nil, err
		}
		select {
		case o := <-done:
			if o.err != nil {
				return nil, o.err
			}
			return showSendResult(o.result), nil
		case <-time.After(timeout(r)):
			return nil, context.DeadlineExceeded
		}
	default:
		result, err := s.SendSync(ctx, messages...)
		if err != nil {
			return nil, err
		}
		return showSendResult(result), nil
	}
}

func (d *driver) sendRequest(r *request) (any, error) {
	s, err := lookup[*sender](d, r)
	if err != nil {
		return nil, err
	}
	reply, err := s.Request(context.Background(), timeout(r), r.Message.build())
	if err != nil {
		return nil, err
	}
	return showBare(reply), nil
}

func (d *driver) sendTransaction(r *request) (any, error) {
	t, err := lookup[*transactor](d, r)
	if err != nil {
		return nil, err
	}
	m := r.Message.build()
	t.listener.scripts.Store(m, r)
	defer t.listener.scripts.Delete(m)
	result, err := t.SendMessageInTransaction(context.Background(), m)
	if err != nil {
		return nil, err
	}
	shown := showSendResult(result.SendResult)
	shown["localState"] = stateNames[result.State]
	return shown, nil
}

// scriptedSelector obeys the queue a test named, then a sharding key, then takes turns.
type scriptedSelector struct {
	byKey, other producer.QueueSelector
}

func (s *scriptedSelector) Select(
	m *primitive.Message, queues []*primitive.MessageQueue, last string,
) *primitive.MessageQueue {
	if m.Queue != nil {
		if m.Queue.BrokerName != "" {
			return m.Queue
		}
		return queues[m.Queue.QueueId%len(queues)]
	}
	if m.GetShardingKey() != "" {
		return s.byKey.Select(m, queues, last)
	}
	return s.other.Select(m, queues, last)
}

var states = map[string]primitive.LocalTransactionState{
	"COMMIT_MESSAGE":   primitive.CommitMessageState,
	"ROLLBACK_MESSAGE": primitive.RollbackMessageState,
	"UNKNOW":           primitive.UnknowState,
}

var stateNames = map[primitive.LocalTransactionState]string{
	primitive.CommitMessageState:   "COMMIT_MESSAGE",
	primitive.RollbackMessageState: "ROLLBACK_MESSAGE",
	primitive.UnknowState:          "UNKNOW",
}

// scriptedListener answers what the request says: the local result first, then one entry a check.
type scriptedListener struct {
	driver   *driver
	handle   string
	defaults []string
	scripts  sync.Map // *primitive.Message -> *request, while it is being sent
	checks   sync.Map // transaction id -> []string
	lock     sync.Mutex
	attempts map[string]int
}

func (l *scriptedListener) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	value, found := l.scripts.Load(m)
	if !found {
		return primitive.UnknowState
	}
	r := value.(*request)
	if len(r.Checks) > 0 {
		l.checks.Store(m.GetProperty(primitive.PropertyUniqueClientMessageIdKeyIndex), r.Checks)
	}
	return states[r.Local]
}

func (l *scriptedListener) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	id := m.GetProperty(primitive.PropertyUniqueClientMessageIdKeyIndex)
	l.lock.Lock()
	if l.attempts == nil {
		l.attempts = map[string]int{}
	}
	l.attempts[id]++
	attempt := l.attempts[id]
	l.lock.Unlock()
	list := l.defaults
	if value, found := l.checks.Load(id); found {
		list = value.([]string)
	}
	answer := "UNKNOW"
	if len(list) > 0 {
		answer = list[min(attempt, len(list))-1]
	}
	l.driver.emit("check", l.handle, object{
		"attempt": attempt, "answer": answer, "receivedAt": time.Now().UnixMilli(), "message": showMessage(m),
	})
	return states[answer]
}

func publishQueues(namesrv []string, topic string) (any, error) {
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver(namesrv)))
	if err != nil {
		return nil, err
	}
	defer a.Close()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	queues, err := a.FetchPublishMessageQueues(ctx, topic)
	if err != nil {
		return nil, err
	}
	shown := make([]any, len(queues))
	for i, q := range queues {
		shown[i] = showQueue(q)
	}
	return shown, nil
}

func servers(r *request) []string { return strings.Split(r.Namesrv, ";") }

// instance gives each client an identity of its own: those with the same one share connections.
func instance(r *request) string {
	if r.Options.InstanceName != "" {
		return r.Options.InstanceName
	}
	return fmt.Sprintf("%d-%s", os.Getpid(), r.Handle)
}

func credentials(r *request) primitive.Credentials {
	return primitive.Credentials{AccessKey: r.AccessKey, SecretKey: r.SecretKey}
}

func timeout(r *request) time.Duration {
	if r.TimeoutMs > 0 {
		return time.Duration(r.TimeoutMs) * time.Millisecond
	}
	return 5 * time.Second
}
