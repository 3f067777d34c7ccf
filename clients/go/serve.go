package iris

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	serveProtocol = "iris.serve.1"
	maxBroadcasts = 64 // that a door sends before some of them are done with
	maxDetail     = 1024
	settled       = 5 * time.Second // after which a lost connection was a good one

	longestTimeout = 100 * 24 * time.Hour // a caller that waits as long as it takes says 50 days
)

// Sender is who has sent a message: a cluster, and the node in it that sent it.
type Sender struct {
	Cluster string
	Node    string
}

// Request is what a member is asked, by Client.Request or by Client.Survey.
type Request struct {
	Operation string // empty for the one without a name
	Payload   Payload
	Headers   map[string]string
	Sender    Sender
	Key       string // idempotency key of the caller; empty if there is none
}

// Message is what all members of a cluster are told by Client.Broadcast.
type Message struct {
	Payload Payload
	Headers map[string]string
	Sender  Sender
}

// Opening is how a tunnel to a member begins.
type Opening struct {
	Operation string
	Headers   map[string]string
	Sender    Sender
}

// RequestHandler answers requests; what it returns is the reply: see Payload.
type RequestHandler = func(ctx context.Context, request *Request) (any, error)

// TunnelHandler talks by a tunnel, which is closed when it returns.
type TunnelHandler = func(ctx context.Context, tunnel *Tunnel, opening *Opening) error

// Service says what a program does for a cluster.
//
// The context of a handler ends when nobody waits for it any more: at the deadline of the request, when the caller gives
// it up, when a tunnel breaks, when the connection to the door is lost, and with the Client.  An error that a handler
// returns is the caller's: an *Error or a Code as they are, any other one, and a panic, with the code "error".
type Service struct {
	// Requests have a handler for each operation; "" is the one without a name.
	Requests map[string]RequestHandler
	// Broadcast gets what all members are told, one message after the other.  nil if the service does not care.
	Broadcast func(ctx context.Context, message *Message) error
	// Tunnels have a handler for each operation.
	Tunnels map[string]TunnelHandler
}

// ServeOptions say how a program serves.
type ServeOptions struct {
	// Capacity is the number of requests that the program takes at a time, from 1 to 1,024; 16 if it is 0.
	Capacity int
	// Keep is the time for which a bridge remembers the outcomes of requests with an idempotency key; without it they are
	// refused.  All programs that serve the cluster at a door say the same.
	Keep time.Duration
	// DrainTimeout is the time for what is in progress when the program stops serving; 10 s if it is 0.
	DrainTimeout time.Duration
	// Ready is called whenever the program is registered at the door, with the node id of the member.  May be nil.
	Ready func(member string)
	// Logger is told of connections that are lost, of panics and of broadcasts that fail; slog.Default() if it is nil.
	Logger *slog.Logger
}

// Serve makes this program serve a cluster, until the context ends or the client is drained: then it takes no new work,
// finishes what is in progress, and returns nil.
//
// A connection that is lost is made anew, after 0.1 s, then less often up to every 5 s: an error is returned only if
// another try has no hope, such as ErrNotAllowed, or if work was lost in draining.  When Serve returns, no handler runs.
//
// Beta until 1.1 of Iris: docs/reference/stability.md.
func (c *Client) Serve(ctx context.Context, cluster string, service Service, options ServeOptions) error {
	if options.Logger == nil {
		options.Logger = slog.Default()
	}
	if options.DrainTimeout == 0 {
		options.DrainTimeout = 10 * time.Second
	}
	working, done, err := c.begin(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer done()
	serving, drain := context.WithCancel(ctx)
	defer drain()
	defer context.AfterFunc(c.open, drain)()
	var handlers sync.WaitGroup
	defer handlers.Wait()
	var pause pause
	for {
		program := &program{
			service: service, options: options, handlers: &handlers,
			asked: map[int64]context.CancelFunc{}, tunnels: map[int64]*Tunnel{},
		}
		began := time.Now()
		err := program.serve(c, working, serving, cluster)
		switch {
		case working.Err() != nil:
			return broken(working, err)
		case serving.Err() != nil && program.isReady():
			return err
		case serving.Err() != nil:
			return nil
		case !mayComeBack(err) && !(program.isReady() && errors.Is(err, ErrProtocol)):
			return err
		}
		if time.Since(began) > settled {
			pause = 0
		}
		options.Logger.Warn("iris: not serving, and trying again", "cluster", cluster, "error", err)
		_ = pause.wait(serving)
		if serving.Err() != nil {
			return nil
		}
	}
}

// program is one connection by which a cluster is served.
type program struct {
	service    Service
	options    ServeOptions
	handlers   *sync.WaitGroup
	socket     *websocket.Conn
	ctx        context.Context // ends with the connection
	end        context.CancelCauseFunc
	capacity   int
	maxMessage int // 0 until the door has registered the program
	broadcasts chan *incoming

	mu      sync.Mutex
	asked   map[int64]context.CancelFunc // the requests in progress
	tunnels map[int64]*Tunnel
}

// incoming is a message of the door.
type incoming struct {
	envelope
	Type       string            `json:"type"`
	ID         int64             `json:"id"`
	Timeout    float64           `json:"timeout"`
	Sender     string            `json:"sender"`
	Node       string            `json:"node"`
	Headers    map[string]string `json:"headers"`
	Operation  string            `json:"operation"`
	Credit     int               `json:"credit"`
	Code       Code              `json:"code"`
	Detail     string            `json:"detail"`
	Member     string            `json:"member"`
	Capacity   int               `json:"capacity"`
	MaxMessage int               `json:"max_message"`
	bridged

	payload Payload
}

// outgoing is a message to the door.
type outgoing struct {
	Type     string          `json:"type"`
	ID       int64           `json:"id,omitempty"`
	Credit   int             `json:"credit,omitempty"`
	Code     Code            `json:"code,omitempty"`
	Detail   string          `json:"detail,omitempty"`
	Payload  json.RawMessage `json:"payload,omitempty"`
	Encoding string          `json:"encoding,omitempty"`

	Permanent bool `json:"permanent,omitempty"`
}

// decode reads a message: a map in JSON, with its payload in an envelope or behind a line feed.
func decode(kind websocket.MessageType, data []byte) (*incoming, error) {
	told := &incoming{}
	head, rest, has := data, []byte(nil), false
	if kind == websocket.MessageBinary {
		head, rest, has = bytes.Cut(data, []byte("\n"))
	}
	if err := json.Unmarshal(head, told); err != nil || has != (kind == websocket.MessageBinary) {
		return nil, violation("a message that cannot be read: %.100q", data)
	}
	var err error
	if has {
		told.payload = Payload{Bytes, rest}
	} else if told.Payload != nil {
		told.payload, err = told.open()
	}
	return told, err
}

// encode writes a message, with a payload if there is one.
func encode(head outgoing, payload *Payload) (websocket.MessageType, []byte, error) {
	if payload != nil && payload.Format != Bytes {
		envelope := payload.envelope()
		head.Payload, head.Encoding = envelope.Payload, envelope.Encoding
	}
	text, err := json.Marshal(head)
	if err != nil || payload == nil || payload.Format != Bytes {
		return websocket.MessageText, text, err
	}
	return websocket.MessageBinary, append(append(text, '\n'), payload.Data...), nil
}

// isReady tells whether the door has registered the program.
func (p *program) isReady() bool { return p.maxMessage != 0 }

// serve connects and works until the connection ends; nil if it has drained because serving ended.
func (p *program) serve(c *Client, working, serving context.Context, cluster string) (err error) {
	p.ctx, p.end = context.WithCancelCause(working)
	defer func() { p.end(err) }()
	query := url.Values{}
	if p.options.Capacity != 0 {
		query.Set("capacity", strconv.Itoa(p.options.Capacity))
	}
	if p.options.Keep != 0 {
		query.Set("keep", seconds(p.options.Keep))
	}
	connecting, cancel := context.WithTimeoutCause(p.ctx, 2*usual, errSilent)
	defer cancel()
	defer context.AfterFunc(serving, cancel)()
	if p.socket, err = c.connect(connecting, c.address("serve", cluster, query), nil, serveProtocol); err != nil {
		return err
	}
	defer p.socket.CloseNow()
	ready, err := p.next(connecting)
	if err != nil {
		return broken(connecting, socketFailure(err))
	}
	if ready.Type != "ready" || ready.MaxMessage < 1 {
		return violation("a door that does not say that it is ready")
	}
	cancel()
	p.capacity, p.maxMessage = ready.Capacity, ready.MaxMessage
	if p.options.Ready != nil {
		p.options.Ready(ready.Member)
	}
	p.broadcasts = make(chan *incoming, maxBroadcasts)
	p.start(p.takeBroadcasts)
	go keepAlive(p.ctx, p.socket, c.options.Silence, p.end)
	defer context.AfterFunc(serving, p.drain)()
	for {
		message, err := p.next(p.ctx)
		if err == nil {
			err = p.take(message)
		}
		if websocket.CloseStatus(err) == websocket.StatusNormalClosure {
			if serving.Err() != nil {
				return nil
			}
			return &Error{Code: ErrEnded, Detail: "the door takes no more work for this program"}
		}
		if err != nil {
			return broken(p.ctx, socketFailure(err))
		}
	}
}

func (p *program) next(ctx context.Context) (*incoming, error) {
	kind, data, err := p.socket.Read(ctx)
	if err != nil {
		return nil, err
	}
	return decode(kind, data)
}

// drain has the door send no new work and hang up after the last answer; it is not waited for without end.
func (p *program) drain() {
	_ = p.send(outgoing{Type: "drain"}, nil)
	timer := time.NewTimer(p.options.DrainTimeout)
	defer timer.Stop()
	select {
	case <-timer.C:
		p.end(&Error{Code: ErrLost, Detail: fmt.Sprintf("what was in progress took more than %v", p.options.DrainTimeout)})
	case <-p.ctx.Done():
	}
}

// send writes a message; the error is the end of the connection, except for a message that is too large or none.
func (p *program) send(head outgoing, payload *Payload) error {
	kind, data, err := encode(head, payload)
	if err != nil {
		return err
	}
	if len(data) > p.maxMessage {
		return &Error{Code: ErrTooLarge, Detail: fmt.Sprintf("a message has at most %d bytes", p.maxMessage)}
	}
	if err := writeTo(p.ctx, p.socket, kind, data); err != nil {
		p.end(err)
		return context.Cause(p.ctx)
	}
	return nil
}

// take does what a message wants; it does not wait for what that takes.
func (p *program) take(message *incoming) error {
	switch message.Type {
	case "request":
		return p.ask(message)
	case "cancel":
		p.forget(message.ID)
	case "broadcast":
		select {
		case p.broadcasts <- message:
		default:
			return violation("more than %d broadcasts that are not done with", maxBroadcasts)
		}
	case "tunnel":
		return p.open(message)
	case "data", "credit", "eof", "close":
		return p.carry(message)
	}
	return nil // of another type: a door of a later version may say more
}

// ask has a request answered, in a goroutine of its own.
func (p *program) ask(message *incoming) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.asked) >= p.capacity {
		return violation("more than %d requests at a time", p.capacity)
	}
	timeout := time.Duration(min(max(message.Timeout, 0), longestTimeout.Seconds()) * float64(time.Second))
	ctx, cancel := context.WithTimeout(p.ctx, timeout)
	p.asked[message.ID] = cancel
	p.start(func() {
		reply, err := p.answer(ctx, message)
		if !p.forget(message.ID) { // from here on the door may send another one
			return // nobody waits for it
		}
		if err == nil {
			err = p.send(outgoing{Type: "reply", ID: message.ID}, &reply)
			if errors.Is(err, ErrTooLarge) {
				err = &Error{Code: "reply_too_large", Detail: err.Error()}
			}
		}
		if err != nil {
			code, detail := toldOf(err)
			_ = p.send(outgoing{Type: "error", ID: message.ID, Code: code, Detail: detail}, nil)
		}
	})
	return nil
}

// forget ends the context of a request; false if it was forgotten before.
func (p *program) forget(id int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	cancel, has := p.asked[id]
	if has {
		cancel()
		delete(p.asked, id)
	}
	return has
}

func (p *program) answer(ctx context.Context, message *incoming) (reply Payload, err error) {
	handle, has := p.service.Requests[message.Operation]
	if !has {
		return Payload{}, noSuchOperation(message)
	}
	request := &Request{message.Operation, message.payload, message.Headers, message.from(), message.Key}
	err = p.guard(func() error {
		value, err := handle(ctx, request)
		if err == nil {
			reply, err = payloadOf(value)
		}
		return err
	})
	return reply, err
}

// takeBroadcasts tells the service of one broadcast after the other.
func (p *program) takeBroadcasts() {
	for {
		select {
		case message := <-p.broadcasts:
			told := &Message{message.payload, message.Headers, message.from()}
			if p.service.Broadcast != nil {
				if err := p.guard(func() error { return p.service.Broadcast(p.ctx, told) }); err != nil {
					p.options.Logger.Warn("iris: a broadcast failed", "error", err)
				}
			}
			_ = p.send(outgoing{Type: "done", ID: message.ID}, nil)
		case <-p.ctx.Done():
			return
		}
	}
}

// open begins a tunnel, whose handler has a goroutine of its own.
func (p *program) open(message *incoming) error {
	handle, has := p.service.Tunnels[message.Operation]
	t := newTunnel(p.ctx, lent, &served{p, message.ID})
	if err := t.addCredit(message.Credit); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tunnels[message.ID] = t
	p.start(func() {
		err := noSuchOperation(message)
		if has {
			err = p.guard(func() error {
				if err := t.carrier.sendCredit(lent); err != nil {
					return err
				}
				return handle(t.ctx, t, &Opening{message.Operation, message.Headers, message.from()})
			})
		}
		p.close(message.ID, err)
		t.end(closed("tunnel"))
	})
	return nil
}

// close ends a tunnel, unless it has ended: in order, or by an error that the other side gets.
func (p *program) close(id int64, err error) {
	if !p.hangUp(id) {
		return
	}
	said := outgoing{Type: "close", ID: id}
	if err != nil {
		said.Code, said.Detail = toldOf(err)
	}
	_ = p.send(said, nil)
}

// hangUp has a tunnel carry nothing more; false if it was hung up before.
func (p *program) hangUp(id int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, has := p.tunnels[id]
	delete(p.tunnels, id)
	return has
}

// carry takes a message of a tunnel.
func (p *program) carry(message *incoming) error {
	p.mu.Lock()
	t := p.tunnels[message.ID]
	p.mu.Unlock()
	if t == nil {
		return nil // it is late
	}
	switch message.Type {
	case "data":
		if message.payload.Format == "" {
			return violation("data without a payload")
		}
		return t.accept(message.payload)
	case "credit":
		return t.addCredit(message.Credit)
	case "eof":
		return t.finish()
	}
	p.hangUp(message.ID)
	t.end(&Error{Code: message.Code, Detail: message.Detail})
	return nil
}

// start runs a function in a goroutine for which Serve waits.
func (p *program) start(run func()) {
	p.handlers.Add(1)
	go func() {
		defer p.handlers.Done()
		run()
	}()
}

// guard calls a handler; what it panics with is logged, and an error of which the other side learns nothing more.
func (p *program) guard(handle func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			p.options.Logger.Error("iris: a handler panicked", "reason", reason, "stack", string(debug.Stack()))
			err = &Error{Code: ErrFailed, Detail: "the handler failed"}
		}
	}()
	return handle()
}

// served is the carrier of a tunnel that the program serves.
type served struct {
	program *program
	id      int64
}

func (s *served) sendData(message Payload) error {
	return s.program.send(outgoing{Type: "data", ID: s.id}, &message)
}

func (s *served) sendCredit(credit int) error {
	return s.program.send(outgoing{Type: "credit", ID: s.id, Credit: credit}, nil)
}

func (s *served) sendEOF() error { return s.program.send(outgoing{Type: "eof", ID: s.id}, nil) }

func (s *served) abort(finished bool) {
	var err error
	if !finished {
		err = closed("tunnel")
	}
	s.program.close(s.id, err)
}

func (m *incoming) from() Sender { return Sender{m.Sender, m.Node} }

func noSuchOperation(message *incoming) error {
	return &Error{Code: ErrNoSuchOperation, Detail: fmt.Sprintf("no operation %.60q", message.Operation)}
}

var name = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// toldOf returns what the other side is told of an error of a handler.
func toldOf(err error) (Code, string) {
	var failure *Error
	code, detail := ErrFailed, err.Error()
	if errors.As(err, &failure) {
		code, detail = failure.Code, failure.Detail
	} else {
		errors.As(err, &code)
	}
	if !name.MatchString(string(code)) {
		code = ErrFailed
	}
	if len(detail) > maxDetail {
		detail = strings.ToValidUTF8(detail[:maxDetail], "")
	}
	return code, detail
}
