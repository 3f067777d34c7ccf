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

// Tunnel is an ordered, throttled, two-way channel to one member of a cluster.
type Tunnel struct {
	socket *websocket.Conn
	ctx    context.Context // ends with the tunnel; its cause is what Send and Receive fail with
	end    context.CancelCauseFunc
	lent   int // messages that the member may send before some of them are received

	arrived chan Payload  // closed when the member has sent its last one
	opened  chan struct{} // closed by the door's first message

	mu       sync.Mutex
	credit   int           // messages that may be sent
	more     chan struct{} // closed and made anew when there is more
	used     int           // messages received since the last were lent
	finished bool          // CloseSend was called
}

// OpenTunnel opens a tunnel to one member of a cluster.
//
// The context bounds OpenTunnel alone; the tunnel lasts until both sides have sent their last message, it is closed,
// or the connection breaks: then the member gets an error, and what was under way may be lost.
func (c *Client) OpenTunnel(ctx context.Context, cluster string, options ...CallOption) (*Tunnel, error) {
	said := optionsOf(options)
	if said.credit == 0 {
		said.credit = 16
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
	t := &Tunnel{
		socket: socket, lent: said.credit, arrived: make(chan Payload, said.credit),
		opened: make(chan struct{}), more: make(chan struct{}),
	}
	t.ctx, t.end = context.WithCancelCause(c.ctx)
	go t.read()
	go keepAlive(t.ctx, socket, c.options.Silence, t.end)
	select {
	case <-t.opened:
		if err = t.say(map[string]any{"credit": t.lent}); err == nil {
			return t, nil
		}
	case <-t.ctx.Done():
		err = context.Cause(t.ctx)
	case <-opening.Done():
		err = broken(opening, nil)
	}
	t.Close()
	return nil, err
}

// Send sends a message when there is room for it.  When the context ends before, nothing was sent.
func (t *Tunnel) Send(ctx context.Context, payload any) error {
	message, err := payloadOf(payload)
	if err != nil {
		return err
	}
	envelope, err := message.envelope()
	if err != nil {
		return err
	}
	if err := t.take(ctx); err != nil {
		return err
	}
	if message.Format == Bytes {
		return t.write(websocket.MessageBinary, message.Data)
	}
	return t.say(envelope)
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
	return t.say(map[string]any{"eof": true})
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
		_ = t.say(map[string]any{"credit": used}) // the next message tells of a tunnel that broke
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

// Close ends the tunnel at once; the member gets an error unless both sides had sent their last message.
func (t *Tunnel) Close() error {
	t.end(closed("tunnel"))
	_ = t.socket.CloseNow() // it may be closed already
	return nil
}

func (t *Tunnel) say(told any) error {
	text, err := json.Marshal(told)
	if err != nil {
		return err
	}
	return t.write(websocket.MessageText, text)
}

func (t *Tunnel) write(kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithTimeoutCause(t.ctx, writeTimeout, errSilent)
	defer cancel()
	if err := t.socket.Write(ctx, kind, data); err != nil {
		t.end(broken(ctx, socketFailure(err)))
		return context.Cause(t.ctx)
	}
	return nil
}

// read takes what comes until the connection ends.
func (t *Tunnel) read() {
	defer t.socket.CloseNow()
	for last := false; ; {
		kind, data, err := t.socket.Read(t.ctx)
		if websocket.CloseStatus(err) == websocket.StatusNormalClosure && last {
			t.end(closed("tunnel"))
			return
		}
		if err == nil {
			last, err = t.accept(kind, data, last)
		}
		if err != nil {
			t.end(broken(t.ctx, socketFailure(err)))
			return
		}
	}
}

// accept takes one message of the door; it returns whether the member has sent its last one.
func (t *Tunnel) accept(kind websocket.MessageType, data []byte, last bool) (bool, error) {
	message := Payload{Bytes, data}
	if kind == websocket.MessageText {
		var told struct {
			envelope
			Credit *int `json:"credit"`
			EOF    bool `json:"eof"`
		}
		err := json.Unmarshal(data, &told)
		switch {
		case err != nil:
			return last, violation("a message of a tunnel cannot be read: %v", err)
		case told.Credit != nil:
			return last, t.addCredit(*told.Credit)
		case told.EOF && !last:
			close(t.arrived)
			return true, nil
		}
		if message, err = told.open(); err != nil {
			return last, err
		}
	}
	if last {
		return last, violation("a message of a tunnel after its end")
	}
	select {
	case t.arrived <- message:
		return last, nil
	default:
		return last, violation("more than the %d messages that were lent", t.lent)
	}
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
	select {
	case <-t.opened:
	default:
		close(t.opened)
	}
	return nil
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
