package iris

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	tunnelProtocol = "iris.tunnel.1"
	writeTimeout   = 30 * time.Second // of one message: a door that takes longer is lost
	maxCredit      = 1 << 20          // messages that may be lent at a time
)

// Tunnel is an ordered, throttled, two-way channel between a program and a member of a cluster.
type Tunnel struct {
	carrier carrier
	ctx     context.Context // ends with the tunnel; its cause is what Send and Receive fail with
	end     context.CancelCauseFunc
	lent    int          // messages that the other side may send before some of them are received
	arrived chan Payload // closed when the other side has sent its last one

	mu       sync.Mutex
	credit   int           // messages that may be sent
	more     chan struct{} // closed and made anew when there is more
	used     int           // messages received since the last were lent
	finished bool          // CloseSend was called
	last     bool          // the other side has sent its last message
}

// carrier writes what one side of a tunnel says.  Its methods may be called by several goroutines; they wait while the
// connection takes nothing, and an error is the end of the tunnel.
type carrier interface {
	sendData(Payload) error
	sendCredit(int) error
	sendEOF() error
	abort(finished bool) // finished: both sides have sent their last message
}

func newTunnel(ctx context.Context, lent int, carrier carrier) *Tunnel {
	t := &Tunnel{carrier: carrier, lent: lent, arrived: make(chan Payload, lent), more: make(chan struct{})}
	t.ctx, t.end = context.WithCancelCause(ctx)
	return t
}

// Send sends a message when there is room for it.  When the context ends before, nothing was sent.
func (t *Tunnel) Send(ctx context.Context, payload any) error {
	message, err := payloadOf(payload)
	if err != nil {
		return err
	}
	if err := t.take(ctx); err != nil {
		return err
	}
	return t.carrier.sendData(message)
}

// take waits for the credit of one message.
func (t *Tunnel) take(ctx context.Context) error {
	for {
		t.mu.Lock()
		more, finished, has := t.more, t.finished, t.credit > 0
		if has && !finished {
			t.credit--
		}
		t.mu.Unlock()
		switch {
		case finished:
			return closed("tunnel")
		case has:
			return nil
		}
		select {
		case <-more:
		case <-t.ctx.Done():
			return context.Cause(t.ctx)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// CloseSend tells the member that no message comes any more; what it sends can still be received.
func (t *Tunnel) CloseSend() error {
	t.mu.Lock()
	before := t.finished
	t.finished = true
	t.mu.Unlock()
	if before {
		return nil
	}
	return t.carrier.sendEOF()
}

// Receive waits for a message.  It returns io.EOF after the member's last one, and an error if the tunnel broke before.
// When the context ends first it returns the context's error, and no message is lost.
func (t *Tunnel) Receive(ctx context.Context) (Payload, error) {
	select {
	case message, more := <-t.arrived:
		return t.received(message, more)
	case <-ctx.Done():
		return Payload{}, context.Cause(ctx)
	case <-t.ctx.Done():
	}
	select { // what arrived before the tunnel broke can be received
	case message, more := <-t.arrived:
		return t.received(message, more)
	default:
		return Payload{}, context.Cause(t.ctx)
	}
}

// received lends the member as much again as was received, in halves of what it was lent.
func (t *Tunnel) received(message Payload, more bool) (Payload, error) {
	if !more {
		return Payload{}, io.EOF
	}
	t.mu.Lock()
	t.used++
	used := t.used
	lend := 2*used >= t.lent
	if lend {
		t.used = 0
	}
	t.mu.Unlock()
	if lend {
		_ = t.carrier.sendCredit(used) // the next message tells of a tunnel that broke
	}
	return message, nil
}

// All returns the messages as they come, until the member's last one; if Receive fails, that error is the last item.
// Leaving the loop does not close the tunnel.
func (t *Tunnel) All(ctx context.Context) iter.Seq2[Payload, error] {
	return func(yield func(Payload, error) bool) {
		for {
			message, err := t.Receive(ctx)
			if err == io.EOF || !yield(message, err) || err != nil {
				return
			}
		}
	}
}

// Close ends the tunnel at once; the other side gets an error unless both had sent their last message.
func (t *Tunnel) Close() error {
	t.end(closed("tunnel"))
	t.mu.Lock()
	finished := t.finished && t.last
	t.mu.Unlock()
	t.carrier.abort(finished)
	return nil
}

// accept takes a message that has arrived; an error is the mistake of who sent it.
func (t *Tunnel) accept(message Payload) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last {
		return violation("a message of a tunnel after its end")
	}
	select {
	case t.arrived <- message:
		return nil
	default:
		return violation("more than the %d messages that were lent", t.lent)
	}
}

// finish takes that the other side has sent its last message.
func (t *Tunnel) finish() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last {
		return violation("two ends of a tunnel")
	}
	t.last = true
	close(t.arrived)
	return nil
}

func (t *Tunnel) addCredit(credit int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if credit < 1 || credit > maxCredit-t.credit {
		return violation("%d messages lent beside %d", credit, t.credit)
	}
	t.credit += credit
	close(t.more)
	t.more = make(chan struct{})
	return nil
}

// opened is a tunnel that a program has opened: a WebSocket of its own.
type opened struct {
	*Tunnel
	socket *websocket.Conn
	ready  chan struct{} // closed by the door's first message
	once   sync.Once     // closes it
}

// OpenTunnel opens a tunnel to one member of a cluster.
//
// The context bounds OpenTunnel alone; the tunnel lasts until both sides have sent their last message, it is closed,
// or the connection breaks: then the member gets an error, and what was under way may be lost.
func (c *Client) OpenTunnel(ctx context.Context, cluster string, options ...CallOption) (*Tunnel, error) {
	said, err := optionsOf(options)
	if err != nil {
		return nil, err
	}
	opening, done, err := c.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	opening, cancel := said.bound(opening, usual)
	defer cancel()
	socket, err := c.connect(opening, c.address("tunnel", cluster, said.query), said.header, tunnelProtocol)
	if err != nil {
		return nil, err
	}
	t := &opened{socket: socket, ready: make(chan struct{})}
	t.Tunnel = newTunnel(c.ctx, said.credit, t)
	go t.read()
	go keepAlive(t.ctx, socket, c.options.Silence, t.end)
	select {
	case <-t.ready:
		if err = t.sendCredit(t.lent); err == nil {
			return t.Tunnel, nil
		}
	case <-t.ctx.Done():
		err = context.Cause(t.ctx)
	case <-opening.Done():
		err = broken(opening, nil)
	}
	t.Close()
	return nil, err
}

func (t *opened) sendData(message Payload) error {
	if message.Format == Bytes {
		return t.write(websocket.MessageBinary, message.Data)
	}
	return t.say(message.envelope())
}

func (t *opened) sendCredit(credit int) error { return t.say(map[string]int{"credit": credit}) }

func (t *opened) sendEOF() error { return t.say(map[string]bool{"eof": true}) }

func (t *opened) abort(bool) { _ = t.socket.CloseNow() } // it may be closed already

func (t *opened) say(told any) error {
	text, err := json.Marshal(told)
	if err != nil {
		return err
	}
	return t.write(websocket.MessageText, text)
}

func (t *opened) write(kind websocket.MessageType, data []byte) error {
	err := writeTo(t.ctx, t.socket, kind, data)
	if err != nil {
		t.end(err)
		err = context.Cause(t.ctx) // the first reason is the one that tells
	}
	return err
}

// read takes what comes until the connection ends.
func (t *opened) read() {
	defer t.socket.CloseNow()
	for {
		kind, data, err := t.socket.Read(t.ctx)
		if websocket.CloseStatus(err) == websocket.StatusNormalClosure {
			t.end(closed("tunnel"))
			return
		}
		if err == nil {
			err = t.receiveOne(kind, data)
		}
		if err != nil {
			t.end(broken(t.ctx, socketFailure(err)))
			return
		}
	}
}

// receiveOne takes one message of the door.
func (t *opened) receiveOne(kind websocket.MessageType, data []byte) error {
	if kind == websocket.MessageBinary {
		return t.accept(Payload{Bytes, data})
	}
	var told struct {
		envelope
		Credit *int `json:"credit"`
		EOF    bool `json:"eof"`
	}
	if err := json.Unmarshal(data, &told); err != nil {
		return violation("a message of a tunnel cannot be read: %v", err)
	}
	switch {
	case told.Credit != nil:
		err := t.addCredit(*told.Credit)
		t.once.Do(func() { close(t.ready) })
		return err
	case told.EOF:
		return t.finish()
	}
	message, err := told.open()
	if err != nil {
		return err
	}
	return t.accept(message)
}

// connect opens a WebSocket of the door.
func (c *Client) connect(ctx context.Context, address *url.URL, header http.Header, protocol string) (*websocket.Conn, error) {
	header, err := c.authorized(ctx, header)
	if err != nil {
		return nil, err
	}
	dialling := &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: header, Subprotocols: []string{protocol}}
	socket, answer, err := websocket.Dial(ctx, address.String(), dialling)
	switch {
	case err == nil && socket.Subprotocol() == protocol:
		socket.SetReadLimit(maxBody)
		return socket, nil
	case err == nil:
		socket.CloseNow()
		return nil, violation("the door does not speak %s", protocol)
	case answer != nil:
		return nil, refusal(answer)
	}
	return nil, broken(ctx, err)
}

// socketFailure is the failure that the close of a WebSocket tells of.
func socketFailure(err error) error {
	var told websocket.CloseError
	if errors.As(err, &told) && told.Code >= 4000 {
		return closeProblem(int(told.Code), told.Reason)
	}
	return err
}

// writeTo writes one message, unless the connection takes nothing for long.
func writeTo(ctx context.Context, socket *websocket.Conn, kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, writeTimeout, errSilent)
	defer cancel()
	if err := socket.Write(ctx, kind, data); err != nil {
		return broken(ctx, socketFailure(err))
	}
	return nil
}

// keepAlive ends a connection whose other side does not answer for a time.
func keepAlive(ctx context.Context, socket *websocket.Conn, silence time.Duration, end context.CancelCauseFunc) {
	ticker := time.NewTicker(silence / 2)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		answered, cancel := context.WithTimeout(ctx, silence/2)
		err := socket.Ping(answered)
		cancel()
		if err != nil {
			end(errSilent)
			return
		}
	}
}
