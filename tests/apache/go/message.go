package main

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// options are the client settings the driver knows; the zero value leaves the client's default.
type options struct {
	InstanceName               string `json:"instanceName"`
	Namespace                  string `json:"namespace"`
	VIP                        bool   `json:"vip"`
	Retry                      *int   `json:"retry"`
	SendTimeoutMs              int64  `json:"sendTimeoutMs"`
	CompressOver               int    `json:"compressOver"`
	MessageModel               string `json:"messageModel"`
	ConsumeFromWhere           string `json:"consumeFromWhere"`
	ConsumeTimestamp           string `json:"consumeTimestamp"`
	MaxReconsumeTimes          *int32 `json:"maxReconsumeTimes"`
	ConsumeGoroutines          int    `json:"consumeGoroutines"`
	ConsumeMessageBatchMaxSize int    `json:"consumeMessageBatchMaxSize"`
	PullBatchSize              int32  `json:"pullBatchSize"`
	SuspendMs                  int64  `json:"suspendMs"`
}

// UnmarshalJSON refuses a setting the driver does not know, so that a test never relies on one without effect.
func (o *options) UnmarshalJSON(data []byte) error {
	type plain options
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	return decoder.Decode((*plain)(o))
}

type message struct {
	Topic      string            `json:"topic"`
	Body       []byte            `json:"body"`
	Tags       string            `json:"tags"`
	Keys       string            `json:"keys"`
	Flag       int32             `json:"flag"`
	Properties map[string]string `json:"properties"`
	DelayLevel int               `json:"delayLevel"`
}

func (m *message) build() *primitive.Message {
	built := primitive.NewMessage(m.Topic, m.Body)
	built.Flag = m.Flag
	if m.Tags != "" {
		built.WithTag(m.Tags)
	}
	if m.Keys != "" {
		built.WithKeys(strings.Split(m.Keys, " "))
	}
	for name, value := range m.Properties {
		built.WithProperty(name, value)
	}
	if m.DelayLevel != 0 {
		built.WithDelayTimeLevel(m.DelayLevel)
	}
	return built
}

func buildAll(messages []message) []*primitive.Message {
	built := make([]*primitive.Message, len(messages))
	for i := range messages {
		built[i] = messages[i].build()
	}
	return built
}

type queue struct {
	Topic      string `json:"topic"`
	BrokerName string `json:"brokerName"`
	QueueID    int    `json:"queueId"`
}

func (q *queue) build() *primitive.MessageQueue {
	return &primitive.MessageQueue{Topic: q.Topic, BrokerName: q.BrokerName, QueueId: q.QueueID}
}

func showQueue(q *primitive.MessageQueue) any {
	if q == nil {
		return nil
	}
	return object{"topic": q.Topic, "brokerName": q.BrokerName, "queueId": q.QueueId}
}

type selector struct {
	Kind string `json:"kind"`
	Arg  any    `json:"arg"`
}

type subscription struct {
	Topic      string `json:"topic"`
	Expression string `json:"expression"`
	Type       string `json:"type"`
}

func showMessage(m *primitive.MessageExt) object {
	shown := showBare(&m.Message)
	shown["queueOffset"] = m.QueueOffset
	shown["commitLogOffset"] = m.CommitLogOffset
	shown["msgId"] = m.MsgId
	shown["offsetMsgId"] = m.OffsetMsgId
	shown["bornTimestamp"] = m.BornTimestamp
	shown["storeTimestamp"] = m.StoreTimestamp
	shown["bornHost"] = m.BornHost
	shown["storeHost"] = m.StoreHost
	shown["reconsumeTimes"] = m.ReconsumeTimes
	shown["sysFlag"] = m.SysFlag
	shown["bodyCrc"] = m.BodyCRC
	shown["storeSize"] = m.StoreSize
	shown["preparedTransactionOffset"] = m.PreparedTransactionOffset
	return shown
}

func showBare(m *primitive.Message) object {
	shown := object{
		"topic":         m.Topic,
		"tags":          m.GetTags(),
		"keys":          m.GetKeys(),
		"flag":          m.Flag,
		"transactionId": m.TransactionId,
		"properties":    m.GetProperties(),
		"body":          m.Body,
	}
	if m.Queue != nil {
		shown["brokerName"] = m.Queue.BrokerName
		shown["queueId"] = m.Queue.QueueId
	}
	return shown
}

func showMessages(messages []*primitive.MessageExt) []object {
	shown := make([]object, len(messages))
	for i, m := range messages {
		shown[i] = showMessage(m)
	}
	return shown
}

var sendStatus = map[primitive.SendStatus]string{
	primitive.SendOK:                "SEND_OK",
	primitive.SendFlushDiskTimeout:  "FLUSH_DISK_TIMEOUT",
	primitive.SendFlushSlaveTimeout: "FLUSH_SLAVE_TIMEOUT",
	primitive.SendSlaveNotAvailable: "SLAVE_NOT_AVAILABLE",
	primitive.SendUnknownError:      "UNKNOWN_ERROR",
}

func showSendResult(r *primitive.SendResult) object {
	return object{
		"status":        sendStatus[r.Status],
		"msgId":         r.MsgID,
		"offsetMsgId":   r.OffsetMsgID,
		"queue":         showQueue(r.MessageQueue),
		"queueOffset":   r.QueueOffset,
		"transactionId": r.TransactionID,
		"regionId":      r.RegionID,
		"traceOn":       r.TraceOn,
	}
}
