// Cases of the official Go client v5: ENDPOINT PREFIX [case ...]. The same as python_cases.py, with the same names, all
// at once; prints one JSON object per case. Over TLS, the client's default.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	mq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

var (
	endpoint = os.Args[1]
	prefix   = os.Args[2]
	output   sync.Mutex
)

// A case returns what was seen, and how many messages came more than once that nobody had given back.
type caseFunction func() (seen any, repeated int, err error)

var cases = map[string]caseFunction{
	"normal":                    normal,
	"filters":                   filters,
	"fifo":                      fifo,
	"delay":                     delay,
	"transaction":               transaction,
	"change_invisible_duration": changeInvisibleDuration,
	"push_with_retry":           pushWithRetry,
	"dead_letters":              deadLetters,
	"late_ack":                  lateAck,
	"refusals":                  refusals,
}

func main() {
	wanted := map[string]bool{}
	for _, name := range os.Args[3:] {
		wanted[name] = true
	}
	if wanted["steady"] {
		cases["steady"] = steady
	}
	var running sync.WaitGroup
	for name, work := range cases {
		if len(wanted) > 0 && !wanted[name] {
			continue
		}
		running.Add(1)
		go func() {
			defer running.Done()
			run(name, work)
		}()
	}
	running.Wait()
}

func run(name string, work caseFunction) {
	started := time.Now()
	seen, repeated, err := guarded(work)
	if err != nil {
		seen = err.Error()
	}
	text, _ := json.Marshal(fmt.Sprint(seen))
	output.Lock()
	defer output.Unlock()
	fmt.Printf("{\"case\": %q, \"ok\": %t, \"seen\": %s, \"repeated\": %d, \"seconds\": %.1f}\n",
		name, err == nil, text, repeated, time.Since(started).Seconds())
}

func guarded(work caseFunction) (seen any, repeated int, err error) {
	defer func() {
		if trouble := recover(); trouble != nil {
			err = fmt.Errorf("panic: %v", trouble)
		}
	}()
	return work()
}

func config(group string) *mq.Config {
	return &mq.Config{
		Endpoint:      endpoint,
		ConsumerGroup: group,
		Credentials: &credentials.SessionCredentials{
			AccessKey: os.Getenv("CASES_ACCESS_KEY"), AccessSecret: os.Getenv("CASES_SECRET_KEY"),
		},
	}
}

func message(topic, body string) *mq.Message {
	return &mq.Message{Topic: prefix + topic, Body: []byte(body)}
}

func producer(topic string, options ...mq.ProducerOption) (mq.Producer, error) {
	made, err := mq.NewProducer(config(""), append(options, mq.WithTopics(prefix+topic))...)
	if err != nil {
		return nil, err
	}
	return made, made.Start()
}

func simple(topic, group string, expression *mq.FilterExpression) (mq.SimpleConsumer, error) {
	made, err := mq.NewSimpleConsumer(config(prefix+group),
		mq.WithSimpleAwaitDuration(5*time.Second),
		mq.WithSimpleSubscriptionExpressions(map[string]*mq.FilterExpression{prefix + topic: expression}))
	if err != nil {
		return nil, err
	}
	return made, made.Start()
}

// poll is one receive; an empty one is not an error.
func poll(consumer mq.SimpleConsumer, invisible time.Duration) ([]*mq.MessageView, error) {
	views, err := consumer.Receive(context.Background(), 16, invisible)
	if status, found := mq.AsErrRpcStatus(err); found && status.GetCode() == 40401 {
		return nil, nil
	}
	return views, err
}

// receive and acknowledge; the number of repeated deliveries is returned beside the messages.
func receive(topic, group string, count int, expression *mq.FilterExpression) ([]*mq.MessageView, int, error) {
	consumer, err := simple(topic, group, expression)
	if err != nil {
		return nil, 0, err
	}
	defer consumer.GracefulStop()
	found := []*mq.MessageView{}
	known := map[string]bool{}
	repeated := 0
	for end := time.Now().Add(60 * time.Second); len(found) < count && time.Now().Before(end); {
		views, err := poll(consumer, 30*time.Second)
		if err != nil {
			return nil, repeated, err
		}
		for _, view := range views {
			if err := consumer.Ack(context.Background(), view); err != nil {
				return nil, repeated, err
			}
			if known[view.GetMessageId()] {
				repeated++
				continue
			}
			known[view.GetMessageId()] = true
			found = append(found, view)
		}
	}
	return found, repeated, expect(len(found) == count, bodies(found))
}

func bodies(views []*mq.MessageView) string {
	texts := []string{}
	for _, view := range views {
		texts = append(texts, string(view.GetBody()))
	}
	sort.Strings(texts)
	return strings.Join(texts, " ")
}

func expect(holds bool, seen any) error {
	if holds {
		return nil
	}
	return fmt.Errorf("unexpected: %v", seen)
}

// A collector is a push consumer that fails the first deliveries of each message.
type collector struct {
	lock     sync.Mutex
	got      []string
	consumer mq.PushConsumer
}

func collect(topic, group, tag string, fail int32) (*collector, error) {
	made := &collector{}
	listener := &mq.FuncMessageListener{Consume: func(view *mq.MessageView) mq.ConsumerResult {
		made.lock.Lock()
		made.got = append(made.got, fmt.Sprintf("%s#%d", view.GetBody(), view.GetDeliveryAttempt()))
		made.lock.Unlock()
		if view.GetDeliveryAttempt() <= fail {
			return mq.FAILURE
		}
		return mq.SUCCESS
	}}
	consumer, err := mq.NewPushConsumer(config(prefix+group),
		mq.WithPushAwaitDuration(5*time.Second),
		mq.WithPushSubscriptionExpressions(map[string]*mq.FilterExpression{prefix + topic: mq.NewFilterExpression(tag)}),
		mq.WithPushMessageListener(listener),
		mq.WithPushConsumptionThreadCount(4),
		mq.WithPushMaxCacheMessageCount(128))
	if err != nil {
		return nil, err
	}
	made.consumer = consumer
	return made, consumer.Start()
}

func (c *collector) seen() []string {
	c.lock.Lock()
	defer c.lock.Unlock()
	return append([]string{}, c.got...)
}

func (c *collector) wait(count int) error {
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if len(c.seen()) >= count {
			return nil
		}
	}
	return expect(false, c.seen())
}

func sendAll(topic string, messages ...*mq.Message) ([]*mq.SendReceipt, error) {
	sender, err := producer(topic)
	if err != nil {
		return nil, err
	}
	defer sender.GracefulStop()
	receipts := []*mq.SendReceipt{}
	for _, one := range messages {
		sent, err := sender.Send(context.Background(), one)
		if err != nil {
			return nil, err
		}
		receipts = append(receipts, sent...)
	}
	return receipts, nil
}

func normal() (any, int, error) {
	one := message("Normal", "n1")
	one.SetTag("TagA")
	one.SetKeys("k1", "k2")
	one.AddProperty("color", "blue")
	sent, err := sendAll("Normal", one)
	if err != nil {
		return nil, 0, err
	}
	found, repeated, err := receive("Normal", "Plain", 1, mq.NewFilterExpression("TagA"))
	if err != nil {
		return nil, repeated, err
	}
	view := found[0]
	holds := view.GetMessageId() == sent[0].MessageID && string(view.GetBody()) == "n1" && *view.GetTag() == "TagA" &&
		len(view.GetKeys()) == 2 && view.GetProperties()["color"] == "blue" && view.GetDeliveryAttempt() == 1
	return view.GetMessageId(), repeated, expect(holds, view)
}

func filters() (any, int, error) {
	messages := []*mq.Message{}
	for number := 0; number < 6; number++ {
		one := message("Normal", fmt.Sprintf("f%d", number))
		one.SetTag([]string{"Even", "Odd"}[number%2])
		one.AddProperty("number", fmt.Sprint(number))
		messages = append(messages, one)
	}
	if _, err := sendAll("Normal", messages...); err != nil {
		return nil, 0, err
	}
	byTag, first, err := receive("Normal", "ByTag", 3, mq.NewFilterExpression("Even"))
	if err != nil {
		return nil, first, err
	}
	bySql, second, err := receive("Normal", "BySql", 3,
		mq.NewFilterExpressionWithType("number BETWEEN 2 AND 4", mq.SQL92))
	if err != nil {
		return nil, first + second, err
	}
	seen := bodies(byTag) + ", " + bodies(bySql)
	return seen, first + second, expect(seen == "f0 f2 f4, f2 f3 f4", seen)
}

func fifo() (any, int, error) {
	listening, err := collect("Fifo", "Orderly", "*", 0)
	if err != nil {
		return nil, 0, err
	}
	defer listening.consumer.GracefulStop()
	messages, expected := []*mq.Message{}, []string{}
	for number := 0; number < 8; number++ {
		one := message("Fifo", fmt.Sprintf("o%d", number))
		one.SetMessageGroup("one")
		messages = append(messages, one)
		expected = append(expected, fmt.Sprintf("o%d#1", number))
	}
	if _, err := sendAll("Fifo", messages...); err != nil {
		return nil, 0, err
	}
	if err := listening.wait(8); err != nil {
		return nil, 0, err
	}
	seen := strings.Join(listening.seen(), " ")
	return seen, 0, expect(seen == strings.Join(expected, " "), seen)
}

func delay() (any, int, error) {
	due := time.Now().Add(4 * time.Second)
	one := message("Delay", "later")
	one.SetTag("Later")
	one.SetDelayTimestamp(due)
	if _, err := sendAll("Delay", one); err != nil {
		return nil, 0, err
	}
	_, repeated, err := receive("Delay", "Waiting", 1, mq.NewFilterExpression("Later"))
	if err != nil {
		return nil, repeated, err
	}
	late := time.Since(due)
	return late, repeated, expect(late > -1100*time.Millisecond && late < time.Minute, late)
}

func transaction() (any, int, error) {
	var lock sync.Mutex
	asked := []string{}
	checker := &mq.TransactionChecker{Check: func(view *mq.MessageView) mq.TransactionResolution {
		lock.Lock()
		defer lock.Unlock()
		asked = append(asked, string(view.GetBody()))
		if string(view.GetBody()) == "gone" {
			return mq.ROLLBACK
		}
		return mq.COMMIT
	}}
	sender, err := producer("Trans", mq.WithTransactionChecker(checker))
	if err != nil {
		return nil, 0, err
	}
	defer sender.GracefulStop()
	for _, body := range []string{"committed", "gone", "checked"} {
		open := sender.BeginTransaction()
		if _, err := sender.SendWithTransaction(context.Background(), message("Trans", body), open); err != nil {
			return nil, 0, err
		}
		if body == "committed" {
			err = open.Commit()
		} else if body == "gone" {
			err = open.RollBack()
		}
		if err != nil {
			return nil, 0, err
		}
	}
	found, repeated, err := receive("Trans", "Transacted", 2, mq.SUB_ALL)
	lock.Lock()
	defer lock.Unlock()
	if err != nil {
		return nil, repeated, fmt.Errorf("%w, asked for %v", err, asked)
	}
	seen := bodies(found)
	return asked, repeated, expect(
		seen == "checked committed" && strings.Contains(strings.Join(asked, " "), "checked"), seen)
}

func changeInvisibleDuration() (any, int, error) {
	consumer, err := simple("Normal", "Changing", mq.NewFilterExpression("Change"))
	if err != nil {
		return nil, 0, err
	}
	defer consumer.GracefulStop()
	if _, err := poll(consumer, 30*time.Second); err != nil { // the group starts here
		return nil, 0, err
	}
	one := message("Normal", "twice")
	one.SetTag("Change")
	if _, err := sendAll("Normal", one); err != nil {
		return nil, 0, err
	}
	attempts := []int32{}
	for end := time.Now().Add(60 * time.Second); len(attempts) < 2 && time.Now().Before(end); {
		views, err := poll(consumer, 30*time.Second)
		if err != nil {
			return nil, 0, err
		}
		for _, view := range views {
			attempts = append(attempts, view.GetDeliveryAttempt())
			if len(attempts) == 1 {
				err = consumer.ChangeInvisibleDuration(view, time.Second)
			} else {
				err = consumer.Ack(context.Background(), view)
			}
			if err != nil {
				return nil, 0, err
			}
		}
	}
	return attempts, 0, expect(fmt.Sprint(attempts) == "[1 2]", attempts)
}

func pushWithRetry() (any, int, error) {
	listening, err := collect("Normal", "Retrying", "Retry", 1)
	if err != nil {
		return nil, 0, err
	}
	defer listening.consumer.GracefulStop()
	messages := []*mq.Message{}
	for number := 0; number < 3; number++ {
		one := message("Normal", fmt.Sprintf("r%d", number))
		one.SetTag("Retry")
		messages = append(messages, one)
	}
	if _, err := sendAll("Normal", messages...); err != nil {
		return nil, 0, err
	}
	if err := listening.wait(6); err != nil {
		return nil, 0, err
	}
	got := listening.seen()
	sort.Strings(got)
	seen := strings.Join(got, " ")
	return seen, 0, expect(seen == "r0#1 r0#2 r1#1 r1#2 r2#1 r2#2", seen)
}

func deadLetters() (any, int, error) {
	listening, err := collect("Normal", "Short", "Dead", 99)
	if err != nil {
		return nil, 0, err
	}
	defer listening.consumer.GracefulStop()
	one := message("Normal", "hopeless")
	one.SetTag("Dead")
	if _, err := sendAll("Normal", one); err != nil {
		return nil, 0, err
	}
	if err := listening.wait(2); err != nil {
		return nil, 0, err
	}
	time.Sleep(12 * time.Second) // a third delivery would come by now; the test looks for the dead letter
	seen := strings.Join(listening.seen(), " ")
	return seen, 0, expect(seen == "hopeless#1 hopeless#2", seen)
}

// refused is the code of the status, or what the client itself said.
func refused(err error) string {
	if err == nil {
		return "accepted"
	}
	if status, found := mq.AsErrRpcStatus(err); found {
		return fmt.Sprint(status.GetCode())
	}
	return strings.SplitN(err.Error(), ",", 2)[0]
}

// lateAck acknowledges after the invisible time: that is refused, and the message comes again.
func lateAck() (any, int, error) {
	consumer, err := simple("Normal", "Late", mq.NewFilterExpression("Late"))
	if err != nil {
		return nil, 0, err
	}
	defer consumer.GracefulStop()
	if _, err := poll(consumer, 15*time.Second); err != nil { // the group starts here
		return nil, 0, err
	}
	one := message("Normal", "late")
	one.SetTag("Late")
	if _, err := sendAll("Normal", one); err != nil {
		return nil, 0, err
	}
	attempts, seen := []int32{}, ""
	for end := time.Now().Add(60 * time.Second); len(attempts) < 2 && time.Now().Before(end); {
		views, err := poll(consumer, 10*time.Second)
		if err != nil {
			return nil, 0, err
		}
		for _, view := range views {
			attempts = append(attempts, view.GetDeliveryAttempt())
			if len(attempts) == 1 {
				time.Sleep(10500 * time.Millisecond)
				seen = refused(consumer.Ack(context.Background(), view))
			} else if err := consumer.Ack(context.Background(), view); err != nil {
				return nil, 0, err
			}
		}
	}
	return "ack: " + seen, 0, expect(fmt.Sprint(attempts) == "[1 2]", attempts)
}

func refusals() (any, int, error) {
	seen := map[string]string{}
	sender, err := producer("Normal")
	if err != nil {
		return nil, 0, err
	}
	defer sender.GracefulStop()
	grouped, long, far := message("Normal", "x"), message("Fifo", "x"), message("Delay", "x")
	grouped.SetMessageGroup("g")
	long.SetMessageGroup(strings.Repeat("g", 64))
	far.SetDelayTimestamp(time.Now().Add(48 * time.Hour))
	reserved := message("Normal", "x")
	reserved.AddProperty("TAGS", "t")
	for name, wrong := range map[string]*mq.Message{
		"unknown topic":      message("Unknown", "x"),
		"wrong type":         grouped,
		"large body":         message("Normal", strings.Repeat("x", 4*1024*1024+1)),
		"reserved property":  reserved,
		"long message group": long,
		"far delivery":       far,
	} {
		_, err := sender.Send(context.Background(), wrong)
		seen[name] = refused(err)
	}
	for name, one := range map[string]struct {
		group      string
		expression *mq.FilterExpression
		invisible  time.Duration
	}{
		"invisible time": {"Refused", mq.SUB_ALL, time.Second},
		"sql":            {"RefusedSql", mq.NewFilterExpressionWithType("number >", mq.SQL92), 15 * time.Second},
	} {
		consumer, err := simple("Normal", one.group, one.expression)
		if err != nil {
			return nil, 0, err
		}
		_, err = poll(consumer, one.invisible)
		seen[name] = refused(err)
		if err := consumer.GracefulStop(); err != nil {
			return nil, 0, err
		}
	}
	texts := []string{}
	for name, code := range seen {
		texts = append(texts, name+": "+code)
	}
	sort.Strings(texts)
	return strings.Join(texts, "; "), 0, nil
}

// steady sends and receives until there is a file stop, whatever happens to proxies; then receives the rest. Only when
// named.
func steady() (any, int, error) {
	seconds, err := strconv.ParseFloat(os.Getenv("CASES_SECONDS"), 64)
	if err != nil {
		return nil, 0, err
	}
	until := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	sender, err := producer("Normal")
	if err != nil {
		return nil, 0, err
	}
	defer sender.GracefulStop()
	consumer, err := simple("Normal", "Plain", mq.SUB_ALL)
	if err != nil {
		return nil, 0, err
	}
	defer consumer.GracefulStop()
	sent, failedSends, failedReceives := map[string]bool{}, 0, 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for number := 1; time.Now().Before(until) && !stopped(); number++ {
			body := fmt.Sprintf("s%d", number)
			if _, err := sender.Send(context.Background(), message("Normal", body)); err != nil {
				failedSends++ // not acknowledged: it may be stored or not
			} else {
				sent[body] = true
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	got := map[string]int{}
	complete := func() bool {
		select {
		case <-done:
		default:
			return false
		}
		for body := range sent {
			if got[body] == 0 {
				return false
			}
		}
		return true
	}
	for time.Now().Before(until.Add(60*time.Second)) && !complete() {
		views, err := consumer.Receive(context.Background(), 16, 10*time.Second)
		if status, found := mq.AsErrRpcStatus(err); err != nil && !(found && status.GetCode() == 40401) {
			failedReceives++
			time.Sleep(200 * time.Millisecond)
		}
		for _, view := range views {
			got[string(view.GetBody())]++
			if err := consumer.Ack(context.Background(), view); err != nil {
				failedReceives++ // what was not acknowledged comes again
				break
			}
		}
	}
	<-done
	repeated := 0
	for _, count := range got {
		repeated += count - 1
	}
	seen := fmt.Sprintf("sent %d, failed sends %d, failed receives %d", len(sent), failedSends, failedReceives)
	return seen, repeated, expect(complete() && len(sent) > 0, fmt.Sprintf("%s, got %d", seen, len(got)))
}

func stopped() bool {
	_, err := os.Stat("stop")
	return err == nil
}
