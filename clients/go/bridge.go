package iris

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	takeProtocol  = "iris.take.1"
	readProtocol  = "iris.read.1"
	leaseProtocol = "iris.lease.1"
)

// bridged are the fields of messages about jobs, the log and leases.
type bridged struct {
	Key       string  `json:"key"`
	Attempt   int     `json:"attempt"`
	Timestamp float64 `json:"timestamp"`
	Limit     int     `json:"limit"`
	Topic     string  `json:"topic"`
	Offset    int64   `json:"offset"`
	Shard     string  `json:"shard"`
	Lag       int64   `json:"lag"`
	Missed    int64   `json:"missed"`
	Gaps      int64   `json:"gaps"`
	Expired   int64   `json:"expired"`
	Token     int64   `json:"token"`
	Left      float64 `json:"left"`
}

// Put puts a job into a queue; it is on the bridge's disk when Put returns.  After an error other than ErrNotSent the
// job may be in the queue.
func (c *Client) Put(ctx context.Context, queue string, payload any, options ...CallOption) error {
	_, err := c.call(ctx, "put", queue, payload, usual, options)
	return err
}

// QueueStatus returns how many jobs of a queue are "waiting", "delayed", "in_hand", "done", "dead" and so on.
func (c *Client) QueueStatus(ctx context.Context, queue string) (map[string]int64, error) {
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithTimeoutCause(ctx, 2*usual, errSilent)
	defer cancel()
	answer, err := c.send(ctx, http.MethodGet, c.address("queue", queue, nil), nil, nil)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	found, counts := map[string]any{}, map[string]int64{}
	if err := json.NewDecoder(answer.Body).Decode(&found); err != nil {
		return nil, broken(ctx, err)
	}
	for name, value := range found {
		if number, is := value.(float64); is {
			counts[name] = int64(number)
		}
	}
	return counts, nil
}

// Job is a job that this program has begun.
type Job struct {
	Payload   Payload
	Key       string // that it was put with; empty if there is none
	Headers   map[string]string
	Sender    string    // the cluster that has put it
	Attempt   int       // 1 for the first one
	Timestamp time.Time // when the bridge stored it

	id       int64
	dialogue *dialogue
}

// Extend lets the job's lease begin anew: it takes longer.
func (j *Job) Extend() { _ = j.dialogue.say(outgoing{Type: "extend", ID: j.id}) }

// Permanent makes an error one after which a job is not tried again: it becomes a dead letter.
func Permanent(err error) error { return &permanent{err} }

type permanent struct{ error }

func (p *permanent) Unwrap() error { return p.error }

// WorkOptions say how a program works.
type WorkOptions struct {
	// Limit is the number of jobs that the program has at a time, from 1 to 1,024; 16 if it is 0.
	Limit int
	// Lease is the time after which a job that is begun may be another one's; 30 s if it is 0.
	Lease time.Duration
	// Attempts that have failed make a dead letter of a job; 5 if it is 0.
	Attempts int
	// Backoff is the time before the second attempt, twice as much before the third, and so on; 1 s if it is 0.
	Backoff time.Duration
	// DrainTimeout is the time for jobs in progress when the program stops; 10 s if it is 0.
	DrainTimeout time.Duration
	// Ready is called whenever the program is registered at the door.  May be nil.
	Ready func()
	// Logger is told of connections that are lost and of jobs that fail; slog.Default() if it is nil.
	Logger *slog.Logger
}

// Work has a function do the jobs of a queue, until the context ends or the client is drained: then it takes no other
// job, finishes those in progress, and returns nil.
//
// A job is done when the function returns nil, and has failed when it returns an error or panics: then it is tried
// again, or is a dead letter; see Permanent.  The function's context ends when the lease of the job is known to be over,
// and with the connection: the job is then given to another program.  So a job may be done twice.
//
// A connection that is lost is made anew.  An error is returned only if another try has no hope, such as ErrNotAllowed.
func (c *Client) Work(
	ctx context.Context, queue string, work func(context.Context, *Job) error, options WorkOptions,
) error {
	query := url.Values{}
	for name, number := range map[string]int{"limit": options.Limit, "attempts": options.Attempts} {
		if number != 0 {
			query.Set(name, strconv.Itoa(number))
		}
	}
	for name, time := range map[string]time.Duration{"lease": options.Lease, "backoff": options.Backoff} {
		if time != 0 {
			query.Set(name, seconds(time))
		}
	}
	var workers sync.WaitGroup
	defer workers.Wait()
	return c.again(ctx, options.Logger, options.DrainTimeout, func(d *dialogue) error {
		ready := options.Ready
		if ready == nil {
			ready = func() {}
		}
		return d.run(c, c.address("take", queue, query), takeProtocol, ready, worker(d, &workers, work))
	})
}

// worker returns what does what a door wants of a program that takes jobs.
func worker(d *dialogue, workers *sync.WaitGroup, work func(context.Context, *Job) error) func(*incoming) error {
	var mu sync.Mutex
	jobs := map[int64]context.CancelFunc{}
	forget := func(id int64) {
		mu.Lock()
		defer mu.Unlock()
		if cancel, has := jobs[id]; has {
			cancel()
			delete(jobs, id)
		}
	}
	return func(message *incoming) error {
		switch message.Type {
		case "job":
			ctx, cancel := context.WithCancel(d.ctx)
			mu.Lock()
			jobs[message.ID] = cancel
			count := len(jobs)
			mu.Unlock()
			if count > d.limit {
				cancel()
				return violation("more than %d jobs at a time", d.limit)
			}
			job := &Job{
				message.payload, message.Key, message.Headers, message.Sender, message.Attempt,
				time.UnixMicro(int64(message.Timestamp * 1e6)), message.ID, d,
			}
			workers.Add(1)
			go func() {
				defer workers.Done()
				defer forget(job.id)
				d.report(job.id, d.guard(func() error { return work(ctx, job) }))
			}()
		case "error":
			d.logger.Warn("iris: a job was done after its lease", "code", message.Code, "detail", message.Detail)
			forget(message.ID)
		}
		return nil
	}
}

// report tells the door what a job has come to.
func (d *dialogue) report(id int64, err error) {
	if err == nil {
		_ = d.say(outgoing{Type: "commit", ID: id})
		return
	}
	d.logger.Warn("iris: a job failed", "error", err)
	var last *permanent
	_, detail := toldOf(err)
	_ = d.say(outgoing{Type: "fail", ID: id, Detail: detail, Permanent: errors.As(err, &last)})
}

// LogEvent is an event of a bridge's log.
type LogEvent struct {
	Topic     string
	Payload   Payload
	Key       string
	Headers   map[string]string
	Sender    string    // the cluster that has published it
	Timestamp time.Time // when the bridge stored it
	Offset    int64     // in its shard
}

// LogBatch are consecutive events of one shard.
type LogBatch struct {
	Events  []LogEvent
	Shard   string
	Lag     int64 // events that come behind it
	Missed  int64 // events that were removed before it could be read
	Gaps    int64 // events that the bridge never got
	Expired int64 // events before it that had expired

	id int64
}

// ReadOptions say how a program reads the log.
type ReadOptions struct {
	// Group goes on where it was; one consumer of a group reads at a time.  Without one it is a look.
	Group string
	// Start is "earliest", "latest", an offset, or a date of ISO 8601 with its zone, where a new group, or a look, begins.
	Start string
	// Now ends the reading after what the log held at its beginning.
	Now bool
	// Limit is the number of batches that the program has at a time, from 1 to 64; 4 if it is 0.
	Limit int
	// Logger is told of connections that are lost; slog.Default() if it is nil.
	Logger *slog.Logger
}

// ReadLog has a function read the events of topics in a bridge's log, batch by batch, until the context ends, or all is
// read that Now asks for: then it returns nil.
//
// A batch is committed when the function returns nil, and its group goes on behind it.  An error that it returns ends
// ReadLog: the batch comes again when the group goes on.  With a group a connection that is lost is made anew.
func (c *Client) ReadLog(
	ctx context.Context, topics []string, read func(context.Context, *LogBatch) error, options ReadOptions,
) error {
	query := url.Values{"topic": topics}
	for name, value := range map[string]string{"group": options.Group, "start": options.Start} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if options.Now {
		query.Set("until", "now")
	}
	if options.Limit != 0 {
		query.Set("limit", strconv.Itoa(options.Limit))
	}
	var failure error // of the function, or of a look, which would begin anew
	err := c.again(ctx, options.Logger, 0, func(d *dialogue) error {
		r := &reader{dialogue: d, read: read, whole: make(chan *LogBatch, maxBatches)}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := r.handle(); err != nil {
				failure = err
				d.end(err)
			}
		}()
		d.onStop = func() { d.end(errStopped) }
		err := d.run(c, c.address("read", "", query), readProtocol, func() {}, r.take)
		d.end(err)
		<-done
		if failure == nil && options.Group == "" {
			failure = err
		}
		if failure != nil {
			return failure
		}
		return err
	})
	if failure != nil {
		err = failure
	}
	if errors.Is(err, errStopped) {
		return nil
	}
	return err
}

const maxBatches = 64 // that a program has at a time

var errStopped = &Error{Code: ErrClosed, Detail: "the reading has ended"}

// reader is one connection by which a program reads the log.
type reader struct {
	*dialogue
	read  func(context.Context, *LogBatch) error
	batch LogBatch       // that is coming
	whole chan *LogBatch // that have come
}

func (r *reader) take(message *incoming) error {
	switch message.Type {
	case "event":
		r.batch.Events = append(r.batch.Events, LogEvent{
			message.Topic, message.payload, message.Key, message.Headers, message.Sender,
			time.UnixMicro(int64(message.Timestamp * 1e6)), message.Offset,
		})
	case "batch":
		whole := &LogBatch{
			r.batch.Events, message.Shard, message.Lag, message.Missed, message.Gaps, message.Expired, message.ID,
		}
		r.batch = LogBatch{}
		select {
		case r.whole <- whole:
		default:
			return violation("more than %d batches at a time", maxBatches)
		}
	case "end":
		r.ends = true
	case "error":
		return &Error{Code: message.Code, Detail: message.Detail}
	}
	return nil
}

// handle has the function read one batch after the other; the error is that of the function.
func (r *reader) handle() error {
	for {
		select {
		case batch := <-r.whole:
			if err := r.guard(func() error { return r.read(r.ctx, batch) }); err != nil {
				if r.stopping.Err() != nil {
					return nil
				}
				return err
			}
			_ = r.say(outgoing{Type: "commit", ID: batch.id})
		case <-r.ctx.Done():
			return nil
		}
	}
}

// Lease is the right to do something alone.
type Lease struct {
	// Token is greater than those of all earlier holders: what only the holder may change refuses smaller ones.
	Token int64
}

// LeaseOptions say how a lease is held.
type LeaseOptions struct {
	// TTL is the time after which another one may have the lease when this program is gone; 10 s if it is 0.
	TTL time.Duration
	// Timeout is the time to wait for it, 50 s at most; 5 s if it is 0.
	Timeout time.Duration
}

// HoldLease calls a function while this program has a lease of a cluster, and returns its error.
//
// The function's context ends when the lease is lost, by the clock of this program at the latest; HoldLease returns
// ErrLeaseLost then, when the function has returned.  ErrTimeout says that the lease was not free in time.
func (c *Client) HoldLease(
	ctx context.Context, cluster, name string, work func(context.Context, *Lease) error, options LeaseOptions,
) error {
	query := url.Values{}
	for name, time := range map[string]time.Duration{"ttl": options.TTL, "timeout": options.Timeout} {
		if time != 0 {
			query.Set(name, seconds(time))
		}
	}
	ttl := options.TTL
	if ttl == 0 {
		ttl = 10 * time.Second
	}
	working, done, err := c.begin(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer done()
	stopping, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(c.open, stop)()
	h := &holder{dialogue: newDialogue(working, stopping, nil, usual), ttl: ttl, work: work, ended: make(chan error, 1)}
	h.onStop = h.stop
	h.holding, h.lose = context.WithCancelCause(stopping)
	defer h.lose(nil)
	address := c.address("lease", cluster, query)
	address.Path, address.RawPath = address.Path+"/"+name, address.EscapedPath()+"/"+url.PathEscape(name)
	err = h.run(c, address, leaseProtocol, nil, h.take)
	if !h.begun() {
		if stopping.Err() != nil {
			return broken(stopping, err)
		}
		return err
	}
	if err != nil {
		err = &Error{Code: ErrLeaseLost, Detail: err.Error(), Cause: err}
		h.lose(err)
	}
	return errors.Join(err, <-h.ended)
}

// holder is a program that has a lease, or waits for it.
type holder struct {
	*dialogue
	ttl     time.Duration
	work    func(context.Context, *Lease) error
	holding context.Context // of the function
	lose    context.CancelCauseFunc
	ended   chan error // gets what the function returns
	token   int64

	mu     sync.Mutex
	asked  time.Time   // when it was renewed last
	expiry *time.Timer // at the end of the lease; nil until the function was called
}

func (h *holder) begun() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.expiry != nil
}

// stop gives up waiting; a function that was called sees by its context that it is to end.
func (h *holder) stop() {
	if !h.begun() {
		h.drain()
	}
}

func (h *holder) take(message *incoming) error {
	switch message.Type {
	case "granted":
		h.token = message.Token
		return h.renew()
	case "drain":
		h.lose(&Error{Code: ErrEnded, Detail: "the door closes"})
	case "renewed":
		h.mu.Lock()
		defer h.mu.Unlock()
		left := time.Until(h.asked.Add(time.Duration(message.Left * float64(time.Second))))
		time.AfterFunc(h.ttl/3, func() { _ = h.renew() })
		if h.expiry != nil {
			h.expiry.Reset(left)
			return nil
		}
		h.expiry = time.AfterFunc(left, func() {
			lost := &Error{Code: ErrLeaseLost, Detail: "the lease was not renewed in time"}
			h.lose(lost)
			h.end(lost)
		})
		go func() {
			h.ended <- h.guard(func() error { return h.work(h.holding, &Lease{h.token}) })
			h.expiry.Stop()
			_ = h.say(outgoing{Type: "release"})
		}()
	}
	return nil
}

func (h *holder) renew() error {
	h.mu.Lock()
	h.asked = time.Now()
	h.mu.Unlock()
	return h.say(outgoing{Type: "renew"})
}

// dialogue is one connection by which a program uses the bridge behind a door.
type dialogue struct {
	ctx      context.Context // ends with the connection
	end      context.CancelCauseFunc
	stopping context.Context // ends when nothing new is begun
	logger   *slog.Logger
	drained  time.Duration
	socket   *websocket.Conn
	onStop   func() // when nothing new is begun: drain
	limit    int
	ready    bool
	ends     bool // the door has said that there is nothing more
}

func newDialogue(working, stopping context.Context, logger *slog.Logger, drained time.Duration) *dialogue {
	if logger == nil {
		logger = slog.Default()
	}
	if drained == 0 {
		drained = 10 * time.Second
	}
	d := &dialogue{stopping: stopping, logger: logger, drained: drained}
	d.ctx, d.end = context.WithCancelCause(working)
	d.onStop = d.drain
	return d
}

// again has a connection, and another one when it is lost, until the context ends or the client is drained.
func (c *Client) again(
	ctx context.Context, logger *slog.Logger, drained time.Duration, once func(*dialogue) error,
) error {
	working, done, err := c.begin(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer done()
	stopping, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(c.open, stop)()
	var pause pause
	for {
		d, began := newDialogue(working, stopping, logger, drained), time.Now()
		err := once(d)
		switch {
		case err == nil:
			return nil
		case working.Err() != nil:
			return broken(working, err)
		case stopping.Err() != nil && !d.ready:
			return nil
		case stopping.Err() != nil || !mayComeBack(err):
			return err
		}
		if time.Since(began) > settled {
			pause = 0
		}
		d.logger.Warn("iris: the connection to the door has ended, and is made anew", "error", err)
		_ = pause.wait(stopping)
		if stopping.Err() != nil {
			return nil
		}
	}
}

// run connects, and does what the door says until the connection ends; nil if that is what the program, or the door,
// wanted.  ready is called at the door's first message if that is "ready"; nil where there is none.
func (d *dialogue) run(
	c *Client, address *url.URL, protocol string, ready func(), take func(*incoming) error,
) (err error) {
	defer func() { d.end(err) }()
	connecting, cancel := context.WithTimeoutCause(d.ctx, 2*usual, errSilent)
	defer cancel()
	defer context.AfterFunc(d.stopping, cancel)()
	if d.socket, err = c.connect(connecting, address, nil, protocol); err != nil {
		return err
	}
	cancel()
	defer d.socket.CloseNow()
	go keepAlive(d.ctx, d.socket, c.options.Silence, d.end)
	defer context.AfterFunc(d.stopping, d.onStop)()
	for {
		kind, data, err := d.socket.Read(d.ctx)
		if websocket.CloseStatus(err) == websocket.StatusNormalClosure {
			if d.stopping.Err() != nil || d.ends || ready == nil {
				return nil
			}
			return &Error{Code: ErrEnded, Detail: "the door takes nothing new for this program"}
		}
		if err != nil {
			return broken(d.ctx, socketFailure(err))
		}
		message, err := decode(kind, data)
		if err != nil {
			return err
		}
		if message.Type == "ready" && ready != nil {
			d.limit, d.ready = message.Limit, true
			ready()
			continue
		}
		if err := take(message); err != nil {
			return err
		}
	}
}

// drain has the door send nothing new and hang up at the end; it is not waited for without end.
func (d *dialogue) drain() {
	_ = d.say(outgoing{Type: "drain"})
	timer := time.NewTimer(d.drained)
	defer timer.Stop()
	select {
	case <-timer.C:
		d.end(&Error{Code: ErrLost, Detail: fmt.Sprintf("what was in progress took more than %v", d.drained)})
	case <-d.ctx.Done():
	}
}

func (d *dialogue) say(head outgoing) error {
	text, err := json.Marshal(head)
	if err != nil {
		return err
	}
	if err := writeTo(d.ctx, d.socket, websocket.MessageText, text); err != nil {
		d.end(err)
		return context.Cause(d.ctx)
	}
	return nil
}

// guard calls a function of the program, and makes an error of a panic.
func (d *dialogue) guard(work func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			d.logger.Error("iris: a function panicked", "reason", reason, "stack", string(debug.Stack()))
			err = &Error{Code: ErrFailed, Detail: "the function failed"}
		}
	}()
	return work()
}
