package main

import (
	"context"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

type puller struct {
	rocketmq.PullConsumer
	namesrv []string
}

var pullStatus = map[primitive.PullStatus]string{
	primitive.PullFound:         "FOUND",
	primitive.PullNoNewMsg:      "NO_NEW_MSG",
	primitive.PullNoMsgMatched:  "NO_MATCHED_MSG",
	primitive.PullOffsetIllegal: "OFFSET_ILLEGAL",
	primitive.PullBrokerTimeout: "BROKER_TIMEOUT",
}

func registerPull(d *driver) {
	d.ops["pull.start"] = d.startPull
	d.ops["pull.stop"] = d.stop
	d.ops["pull.queues"] = onPull(d, func(p *puller, r *request) (any, error) {
		return publishQueues(p.namesrv, r.Topic)
	})
	d.ops["pull.pull"] = onPull(d, pull)
	d.ops["pull.fetchOffset"] = onPull(d, func(p *puller, r *request) (any, error) {
		return p.CurrentOffset(r.Queue.build())
	})
	d.ops["pull.updateOffset"] = onPull(d, func(p *puller, r *request) (any, error) {
		if err := p.UpdateOffset(r.Queue.build(), r.Offset); err != nil || !r.Persist {
			return nil, err
		}
		return nil, p.PersistOffset(context.Background(), r.Queue.Topic)
	})
}

func onPull(d *driver, act func(*puller, *request) (any, error)) func(*request) (any, error) {
	return func(r *request) (any, error) {
		p, err := lookup[*puller](d, r)
		if err != nil {
			return nil, err
		}
		return act(p, r)
	}
}

// startPull needs the topic at once: the Go pull consumer refuses to start without a subscription.
func (d *driver) startPull(r *request) (any, error) {
	list, err := consumerOptions(r)
	if err != nil {
		return nil, err
	}
	c, err := rocketmq.NewPullConsumer(list...)
	if err != nil {
		return nil, err
	}
	expression := r.Expression
	if expression == "" {
		expression = "*"
	}
	for _, topic := range r.Topics {
		if err := c.Subscribe(topic, messageSelector(expression, r.Type)); err != nil {
			return nil, err
		}
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	d.keep(r, &puller{c, servers(r)})
	return object{"clientId": instance(r)}, nil
}

func pull(p *puller, r *request) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout(r))
	defer cancel()
	result, err := p.PullFrom(ctx, r.Queue.build(), r.Offset, r.Max)
	if err != nil {
		return nil, err
	}
	if result.Status == primitive.PullFound && result.GetMessageExts() == nil {
		result.SetMessageExts(primitive.DecodeMessage(result.GetBody()))
	}
	return object{
		"status":     pullStatus[result.Status],
		"nextOffset": result.NextBeginOffset,
		"minOffset":  result.MinOffset,
		"maxOffset":  result.MaxOffset,
		"messages":   showMessages(result.GetMessageExts()),
	}, nil
}
