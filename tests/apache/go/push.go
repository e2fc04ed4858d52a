package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

type script struct {
	FailTimes  int    `json:"failTimes"`
	FailTag    string `json:"failTag"`
	FailMode   string `json:"failMode"`
	SleepMs    int64  `json:"sleepMs"`
	DelayLevel *int   `json:"delayLevel"`
	AckIndex   *int32 `json:"ackIndex"`
	SuspendMs  *int   `json:"suspendMs"`
	Report     bool   `json:"report"`
}

// listener follows a script and reports every message.
type listener struct {
	rocketmq.PushConsumer
	driver   *driver
	handle   string
	orderly  bool
	script   script
	count    atomic.Int64
	lock     sync.Mutex
	attempts map[string]int
}

func registerPush(d *driver) {
	d.ops["push.start"] = d.startPush
	d.ops["push.stop"] = d.stop
	d.ops["push.count"] = onPush(d, func(l *listener, _ *request) (any, error) { return l.count.Load(), nil })
	d.ops["push.suspend"] = onPush(d, func(l *listener, _ *request) (any, error) { l.Suspend(); return nil, nil })
	d.ops["push.resume"] = onPush(d, func(l *listener, _ *request) (any, error) { l.Resume(); return nil, nil })
	d.ops["push.unsubscribe"] = onPush(d, func(l *listener, r *request) (any, error) {
		return nil, l.Unsubscribe(r.Topic)
	})
}

func onPush(d *driver, act func(*listener, *request) (any, error)) func(*request) (any, error) {
	return func(r *request) (any, error) {
		l, err := lookup[*listener](d, r)
		if err != nil {
			return nil, err
		}
		return act(l, r)
	}
}

func consumerOptions(r *request) ([]consumer.Option, error) {
	o := r.Options
	list := []consumer.Option{
		consumer.WithGroupName(r.Group),
		consumer.WithNameServer(servers(r)),
		consumer.WithInstance(instance(r)),
		consumer.WithConsumerOrder(r.Orderly),
		consumer.WithVIPChannel(o.VIP),
	}
	switch o.MessageModel {
	case "BROADCASTING":
		list = append(list, consumer.WithConsumerModel(consumer.BroadCasting))
	case "", "CLUSTERING":
		list = append(list, consumer.WithConsumerModel(consumer.Clustering))
	default:
		return nil, fmt.Errorf("no message model %s", o.MessageModel)
	}
	switch o.ConsumeFromWhere {
	case "CONSUME_FROM_FIRST_OFFSET":
		list = append(list, consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	case "CONSUME_FROM_TIMESTAMP":
		list = append(list, consumer.WithConsumeFromWhere(consumer.ConsumeFromTimestamp),
			consumer.WithConsumeTimestamp(o.ConsumeTimestamp))
	case "", "CONSUME_FROM_LAST_OFFSET":
		list = append(list, consumer.WithConsumeFromWhere(consumer.ConsumeFromLastOffset))
	default:
		return nil, fmt.Errorf("no start point %s", o.ConsumeFromWhere)
	}
	switch r.Strategy {
	case "", "AVG":
		list = append(list, consumer.WithStrategy(consumer.AllocateByAveragely))
	case "AVG_BY_CIRCLE":
		list = append(list, consumer.WithStrategy(consumer.AllocateByAveragelyCircle))
	case "CONSISTENT_HASH":
		list = append(list, consumer.WithStrategy(consumer.AllocateByConsistentHash(10)))
	default:
		return nil, fmt.Errorf("no allocation strategy %s", r.Strategy)
	}
	if o.Namespace != "" {
		list = append(list, consumer.WithNamespace(o.Namespace))
	}
	if o.Retry != nil {
		list = append(list, consumer.WithRetry(*o.Retry))
	}
	if o.MaxReconsumeTimes != nil {
		list = append(list, consumer.WithMaxReconsumeTimes(*o.MaxReconsumeTimes))
	}
	if o.ConsumeGoroutines != 0 {
		list = append(list, consumer.WithConsumeGoroutineNums(o.ConsumeGoroutines))
	}
	if o.ConsumeMessageBatchMaxSize != 0 {
		list = append(list, consumer.WithConsumeMessageBatchMaxSize(o.ConsumeMessageBatchMaxSize))
	}
	if o.PullBatchSize != 0 {
		list = append(list, consumer.WithPullBatchSize(o.PullBatchSize))
	}
	if o.SuspendMs != 0 {
		list = append(list, consumer.WithSuspendCurrentQueueTimeMillis(time.Duration(o.SuspendMs)*time.Millisecond))
	}
	if r.AccessKey != "" {
		list = append(list, consumer.WithCredentials(credentials(r)))
	}
	return list, nil
}

func messageSelector(expression, kind string) consumer.MessageSelector {
	if kind == "SQL92" {
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: expression}
	}
	return consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
}

func (d *driver) startPush(r *request) (any, error) {
	list, err := consumerOptions(r)
	if err != nil {
		return nil, err
	}
	c, err := rocketmq.NewPushConsumer(list...)
	if err != nil {
		return nil, err
	}
	l := &listener{
		PushConsumer: c, driver: d, handle: r.Handle, orderly: r.Orderly, script: r.Script,
		attempts: map[string]int{},
	}
	for _, s := range r.Subscriptions {
		if err := c.Subscribe(s.Topic, messageSelector(s.Expression, s.Type), l.consume); err != nil {
			return nil, err
		}
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	d.keep(r, l)
	return object{"clientId": instance(r)}, nil
}

func (l *listener) consume(
	ctx context.Context, messages ...*primitive.MessageExt,
) (consumer.ConsumeResult, error) {
	receivedAt := time.Now().UnixMilli()
	if c, found := primitive.GetConcurrentlyCtx(ctx); found {
		if l.script.DelayLevel != nil {
			c.DelayLevelWhenNextConsume = *l.script.DelayLevel
		}
		if l.script.AckIndex != nil {
			c.AckIndex = *l.script.AckIndex
		}
	}
	if c, found := primitive.GetOrderlyCtx(ctx); found && l.script.SuspendMs != nil {
		c.SuspendCurrentQueueTimeMillis = *l.script.SuspendMs
	}
	success := true
	for _, m := range messages {
		attempt := l.attempt(m.MsgId)
		fails := attempt <= l.script.FailTimes && (l.script.FailTag == "" || l.script.FailTag == m.GetTags())
		success = success && !fails
		if l.script.Report {
			l.driver.emit("message", l.handle, object{
				"attempt": attempt, "batch": len(messages), "receivedAt": receivedAt, "thread": "",
				"failed": fails, "message": showMessage(m),
			})
		}
	}
	l.count.Add(int64(len(messages)))
	time.Sleep(time.Duration(l.script.SleepMs) * time.Millisecond)
	if success {
		return consumer.ConsumeSuccess, nil
	}
	if l.script.FailMode == "throw" {
		return consumer.ConsumeRetryLater, errors.New("scripted failure")
	}
	if l.orderly {
		return consumer.SuspendCurrentQueueAMoment, nil
	}
	return consumer.ConsumeRetryLater, nil
}

func (l *listener) attempt(id string) int {
	if l.script.FailTimes == 0 {
		return 1
	}
	l.lock.Lock()
	defer l.lock.Unlock()
	l.attempts[id]++
	return l.attempts[id]
}
