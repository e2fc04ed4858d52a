// The official Go client behind a line protocol: {"id", "op", "handle", ...} in, {"id", "ok", "result"} or
// {"id", "ok", "error"} out, and {"event", "handle", ...} at any time. Every request runs on a goroutine of
// its own. The process ends when its standard input closes.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

type object = map[string]any

// request holds every field any operation reads; those of other operations stay empty.
type request struct {
	ID            int64          `json:"id"`
	Op            string         `json:"op"`
	Handle        string         `json:"handle"`
	Group         string         `json:"group"`
	Namesrv       string         `json:"namesrv"`
	Options       options        `json:"options"`
	Message       *message       `json:"message"`
	Messages      []message      `json:"messages"`
	Mode          string         `json:"mode"`
	Queue         *queue         `json:"queue"`
	Selector      *selector      `json:"selector"`
	TimeoutMs     int64          `json:"timeoutMs"`
	Transactional bool           `json:"transactional"`
	Local         string         `json:"local"`
	Checks        []string       `json:"checks"`
	Subscriptions []subscription `json:"subscriptions"`
	Orderly       bool           `json:"orderly"`
	Script        script         `json:"script"`
	Strategy      string         `json:"strategy"`
	AccessKey     string         `json:"accessKey"`
	SecretKey     string         `json:"secretKey"`
	Topics        []string       `json:"topics"`
	Topic         string         `json:"topic"`
	Expression    string         `json:"expression"`
	Type          string         `json:"type"`
	Offset        int64          `json:"offset"`
	Max           int            `json:"max"`
	Persist       bool           `json:"persist"`
}

type driver struct {
	out     sync.Mutex
	encoder *json.Encoder
	ops     map[string]func(*request) (any, error)
	clients sync.Map
}

func main() {
	output := bufio.NewWriter(os.Stdout)
	d := &driver{ops: map[string]func(*request) (any, error){}}
	d.encoder = json.NewEncoder(flushing{output})
	registerProducer(d)
	registerPush(d)
	registerPull(d)
	d.ops["abandon"] = d.abandon
	d.write(object{"event": "ready", "handle": nil, "version": "go"})
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := input.ReadBytes('\n')
		if err != nil {
			return
		}
		r := new(request)
		if err := json.Unmarshal(line, r); err != nil {
			d.write(object{"id": r.ID, "ok": false, "error": describe(err)})
			continue
		}
		go d.run(r)
	}
}

func (d *driver) run(r *request) {
	result, err := d.call(r)
	if err != nil {
		d.write(object{"id": r.ID, "ok": false, "error": describe(err)})
		return
	}
	d.write(object{"id": r.ID, "ok": true, "result": result})
}

func (d *driver) call(r *request) (result any, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("panic: %v", fault)
		}
	}()
	op, found := d.ops[r.Op]
	if !found {
		return nil, fmt.Errorf("the Go driver has no op %s", r.Op)
	}
	return op(r)
}

func (d *driver) emit(event, handle string, fields object) {
	fields["event"] = event
	fields["handle"] = handle
	d.write(fields)
}

func (d *driver) write(line object) {
	d.out.Lock()
	defer d.out.Unlock()
	if err := d.encoder.Encode(line); err != nil {
		os.Exit(3)
	}
}

type stopper interface{ Shutdown() error }

func (d *driver) keep(r *request, client stopper) {
	d.clients.Store(r.Handle, client)
}

func lookup[T any](d *driver, r *request) (T, error) {
	var none T
	value, found := d.clients.Load(r.Handle)
	if !found {
		return none, fmt.Errorf("no client with handle %s", r.Handle)
	}
	client, fits := value.(T)
	if !fits {
		return none, fmt.Errorf("%s is a %T", r.Handle, value)
	}
	return client, nil
}

func (d *driver) stop(r *request) (any, error) {
	client, err := lookup[stopper](d, r)
	if err != nil {
		return nil, err
	}
	d.clients.Delete(r.Handle)
	return nil, client.Shutdown()
}

// abandon forgets every client and stops them in the background; their servers may be gone already.
func (d *driver) abandon(*request) (any, error) {
	d.clients.Range(func(handle, client any) bool {
		d.clients.Delete(handle)
		go client.(stopper).Shutdown()
		return true
	})
	return nil, nil
}

func describe(err error) object {
	fields := object{"type": reflect.TypeOf(err).String(), "message": err.Error()}
	var refused *primitive.MQBrokerErr
	if errors.As(err, &refused) {
		fields["type"] = "MQBrokerErr"
		fields["code"] = refused.ResponseCode
	}
	return fields
}

type flushing struct{ *bufio.Writer }

func (f flushing) Write(data []byte) (int, error) {
	count, err := f.Writer.Write(data)
	if err != nil {
		return count, err
	}
	return count, f.Flush()
}

var _ io.Writer = flushing{}
