package iris

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// maxBody is the size limit of what is read in one piece, in bytes: a payload has 1 MiB, as JSON at most six times as much.
const maxBody = 16 << 20

// Options say how a Client comes to its door.
type Options struct {
	// Token is what the client shows.
	Token string
	// TokenSource returns the token to show, in place of Token: it is called for each call and each new connection.
	TokenSource func(context.Context) (string, error)
	// TLS has the authorities to trust, and the client's certificate if a proxy wants one; nil for those of the system.
	TLS *tls.Config
	// Plaintext permits http:// to other machines: whoever is on the way can read the token then.
	Plaintext bool
	// Silence is the time without a sign of life after which a door is taken for lost: 40 s if it is 0.  A door gives
	// one every 15 s to subscriptions.
	Silence time.Duration
}

// Client is a program's way to the clusters.
type Client struct {
	base    *url.URL
	options Options
	http    *http.Client
	ctx     context.Context // ends with Close
	end     context.CancelCauseFunc
	open    context.Context // ends when no call begins any more
	refuse  context.CancelFunc

	mu    sync.Mutex
	calls int           // that are under way
	idle  chan struct{} // closed when there are none, and made anew
}

// Dial connects to the door at an address, http://HOST:PORT or https://HOST, and returns a Client of it.
//
// It fails if there is no door; whether the token is good is seen by the first call.  A connection that is lost later
// is made anew.  The context bounds Dial alone.
func Dial(ctx context.Context, address string, options Options) (*Client, error) {
	base, err := url.Parse(strings.TrimRight(address, "/"))
	if err != nil {
		return nil, fmt.Errorf("iris: %w", err)
	}
	if base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("iris: %q is no address of a door: expected http://HOST:PORT or https://HOST", address)
	}
	if base.Scheme == "http" && !options.Plaintext && !isLoopback(base.Hostname()) {
		return nil, fmt.Errorf("iris: %s is another machine, and http would show it the token readable for all on the way: use https, or Options.Plaintext", base.Host)
	}
	if options.Silence == 0 {
		options.Silence = 40 * time.Second
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = options.TLS
	transport.Protocols = new(http.Protocols)
	transport.Protocols.SetHTTP1(true)
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, 64 // as many as calls that a door lets a client have
	transport.IdleConnTimeout = 4 * time.Second                   // the door hangs up after 5
	client := &Client{base: base, options: options, idle: make(chan struct{})}
	client.http = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	client.ctx, client.end = context.WithCancelCause(context.Background())
	client.open, client.refuse = context.WithCancel(client.ctx)
	answer, err := client.send(ctx, http.MethodGet, client.address("iris.js", "", nil), nil, nil)
	if err != nil {
		return nil, err
	}
	answer.Body.Close()
	return client, nil
}

func isLoopback(host string) bool {
	address := net.ParseIP(host)
	return host == "localhost" || address != nil && address.IsLoopback()
}

// Close ends the client: its subscriptions, tunnels and services, and the calls that are under way.
func (c *Client) Close() error {
	c.end(closed("client"))
	c.http.CloseIdleConnections()
	return nil
}

// Drain begins no other call, has its services finish what they are at, waits for calls that are under way, and closes
// the client.  When the context ends first it closes the client at once, and returns the context's error.
func (c *Client) Drain(ctx context.Context) error {
	defer c.Close()
	c.refuse()
	for {
		c.mu.Lock()
		calls, idle := c.calls, c.idle
		c.mu.Unlock()
		if calls == 0 {
			return nil
		}
		select {
		case <-idle:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// begin counts a call, and returns its context, which ends with the client too, and what is called at its end.
func (c *Client) begin(ctx context.Context) (context.Context, func(), error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open.Err() != nil {
		return nil, nil, closed("client")
	}
	c.calls++
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) })
	return ctx, sync.OnceFunc(func() {
		stop()
		cancel(context.Canceled)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.calls--; c.calls == 0 {
			close(c.idle)
			c.idle = make(chan struct{})
		}
	}), nil
}

// Request asks one member of a cluster, and returns its reply.
//
// When the context ends before, the member's handler is cancelled.  Of a request that is not idempotent, ErrLost,
// ErrUnknown and ErrTimeout leave open whether the handler has run.
func (c *Client) Request(ctx context.Context, cluster string, payload any, options ...CallOption) (Payload, error) {
	return c.call(ctx, "request", cluster, payload, usual, options)
}

// Broadcast tells all members of a cluster.
func (c *Client) Broadcast(ctx context.Context, cluster string, payload any, options ...CallOption) error {
	_, err := c.call(ctx, "broadcast", cluster, payload, 0, options)
	return err
}

// Publish sends an event to all subscribers of a topic: with Confirmed it returns when those that are durable have it
// on disk, without it when the door has sent it.
func (c *Client) Publish(ctx context.Context, topic string, payload any, options ...CallOption) error {
	_, err := c.call(ctx, "publish", topic, payload, usual, options)
	return err
}

func (c *Client) call(
	ctx context.Context, verb, name string, payload any, timeout time.Duration, options []CallOption,
) (reply Payload, err error) {
	done, err := c.post(ctx, verb, name, payload, timeout, options, func(answer *http.Response) error {
		defer answer.Body.Close()
		data, err := io.ReadAll(io.LimitReader(answer.Body, maxBody+1))
		if len(data) > maxBody {
			return violation("an answer of more than %d bytes", maxBody)
		}
		kind, _, _ := strings.Cut(answer.Header.Get("Content-Type"), ";")
		reply = Payload{Format(kind), data}
		return err
	})
	if err != nil {
		return Payload{}, err
	}
	done()
	return reply, nil
}

// post makes a call, and reads its answer, which is there until done is called.
func (c *Client) post(
	ctx context.Context, verb, name string, payload any, timeout time.Duration, options []CallOption,
	read func(*http.Response) error,
) (done func(), err error) {
	said, err := optionsOf(options)
	if err != nil {
		return nil, err
	}
	body, err := payloadOf(payload)
	if err != nil {
		return nil, err
	}
	ctx, end, err := c.begin(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := said.bound(ctx, timeout)
	said.header.Set("Content-Type", string(body.Format))
	var pause pause
	for {
		answer, err := c.send(ctx, http.MethodPost, c.address(verb, name, said.query), said.header, body.Data)
		if err == nil {
			if err = read(answer); err == nil {
				return func() { cancel(); end() }, nil
			}
			err = broken(ctx, err)
		}
		if !said.idempotent || !isBroken(err) || pause.wait(ctx) != nil || !said.again() {
			cancel()
			end()
			return nil, err
		}
	}
}

// isBroken tells whether a call failed at its connection, or at a door that closes.
func isBroken(err error) bool {
	var failure *Error
	return errors.As(err, &failure) &&
		(failure.Code == ErrEnded || failure.Status == 0 && (failure.Code == ErrLost || failure.Code == ErrNotSent))
}

func (c *Client) address(verb, name string, query url.Values) *url.URL {
	address := c.base.JoinPath(verb)
	if name != "" {
		// One escaped segment: a name may have slashes of its own, and JoinPath would resolve its dots.
		address.Path, address.RawPath = address.Path+"/"+name, address.EscapedPath()+"/"+url.PathEscape(name)
	}
	address.RawQuery = query.Encode()
	return address
}

// send makes one request of HTTP, and returns an answer that is no failure.
func (c *Client) send(
	ctx context.Context, method string, address *url.URL, header http.Header, body []byte,
) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, address.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("iris: %w", err)
	}
	if request.Header, err = c.authorized(ctx, header); err != nil {
		return nil, err
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return nil, broken(ctx, err)
	}
	if answer.StatusCode == http.StatusOK || answer.StatusCode == http.StatusNoContent {
		return answer, nil
	}
	defer answer.Body.Close()
	return nil, refusal(answer)
}

// authorized returns a copy of headers with the token.
func (c *Client) authorized(ctx context.Context, header http.Header) (http.Header, error) {
	token := c.options.Token
	if c.options.TokenSource != nil {
		var err error
		if token, err = c.options.TokenSource(ctx); err != nil {
			return nil, fmt.Errorf("iris: no token: %w", err)
		}
	}
	all := http.Header{}
	if header != nil {
		all = header.Clone()
	}
	all.Set("Authorization", "Bearer "+strings.TrimSpace(token)) // a file of it ends with a line feed
	return all, nil
}

// refusal reads the failure that an answer tells of.
func refusal(answer *http.Response) *Error {
	data, _ := io.ReadAll(io.LimitReader(answer.Body, maxBody)) // of what is cut off the status is left
	told := problem{}
	if json.Unmarshal(data, &told) != nil || told.Code == "" {
		return violation("the answer has the status %s, and is none of a door", answer.Status)
	}
	told.Status = answer.StatusCode
	return told.failure()
}

// broken is the failure of a call in whose connection an error came up: the caller's own end, or the connection's.
func broken(ctx context.Context, err error) error {
	var failure *Error
	if cause := context.Cause(ctx); cause != nil {
		if errors.As(cause, &failure) {
			return failure
		}
		return fmt.Errorf("iris: the call was given up: %w", cause)
	}
	if errors.As(err, &failure) {
		return failure
	}
	return lost(err)
}

// pause is the time between tries: 0.1 s, doubled up to 5 s, less up to a half by chance.
type pause time.Duration

func (p *pause) wait(ctx context.Context) error {
	*p = pause(min(max(2*time.Duration(*p), 100*time.Millisecond), 5*time.Second))
	timer := time.NewTimer(time.Duration(float64(*p) * (0.5 + rand.Float64()/2)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
