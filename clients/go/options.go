package iris

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
)

const (
	longest = 50 * time.Second // what the timeout and the wait of a call may be together
	usual   = 5 * time.Second  // what a call has if nobody says, and what an answer has to arrive beyond its time
	lent    = 16               // messages of a tunnel, if nobody says
)

// CallOption changes one call.  A call for which an option does not exist fails with ErrMalformed.
type CallOption func(*callOptions)

type callOptions struct {
	query         url.Values
	header        http.Header
	timeout, wait time.Duration // 0 if nobody says
	over          time.Time     // when both have passed
	idempotent    bool
	credit        int
}

// Operation names the operation of the cluster; without it the one without a name is meant.
func Operation(name string) CallOption { return text("operation", name) }

// Timeout is the time that the call may take.  Without it, it is what is left until the deadline of the context, and
// 5 s without a deadline; for a survey it is 1 s.  With Wait it is 50 s at most.
func Timeout(d time.Duration) CallOption { return func(o *callOptions) { o.timeout = d } }

// Wait is the time that a cluster without a member has to get one, before the Timeout begins.
func Wait(d time.Duration) CallOption {
	return func(o *callOptions) { o.wait = d }
}

// Idempotent says that to do a request twice has the effect of once: until its time is over it is tried again where a
// member or the connection to the door is lost.
func Idempotent() CallOption {
	return func(o *callOptions) {
		o.idempotent = true
		o.query.Set("idempotent", "true")
	}
}

// IdempotencyKey has a request done once for this key of printable ASCII, also by repeats from other programs; the
// cluster has to keep outcomes.  Such a request is tried again as an idempotent one.
func IdempotencyKey(key string) CallOption {
	return func(o *callOptions) {
		o.idempotent = true
		quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key)
		o.header.Set("Idempotency-Key", `"`+quoted+`"`)
	}
}

// Key sends requests with the same key to the same member while that one lives, and keeps events of one key in order.
func Key(key string) CallOption { return text("key", key) }

// Hedge asks a second member if the first has not answered after a time; for idempotent requests.
func Hedge(after time.Duration) CallOption { return text("hedge", seconds(after)) }

// Priority is "low", which is refused first, or "high", which is refused last.
func Priority(name string) CallOption { return text("priority", name) }

// PreferSite asks the members at a site first.
func PreferSite(site string) CallOption { return text("prefer_site", site) }

// Count ends a survey after so many answers.
func Count(answers int) CallOption { return text("count", strconv.Itoa(answers)) }

// Quiet ends a survey in which no answer has come for a time.
func Quiet(d time.Duration) CallOption { return text("quiet", seconds(d)) }

// Confirmed has Publish wait until every durable subscriber has the event on disk.
func Confirmed() CallOption { return text("confirm", "true") }

// Retain has the door keep the event for those who subscribe later.
func Retain() CallOption { return text("retain", "true") }

// Delay is the time for which a job is not handed out.
func Delay(d time.Duration) CallOption { return text("delay", seconds(d)) }

// Expires is the time after which a job is not begun any more.
func Expires(d time.Duration) CallOption { return text("expires", seconds(d)) }

// JobPriority is from -9 to 9: a job with a higher one is handed out first.
func JobPriority(number int) CallOption { return text("priority", strconv.Itoa(number)) }

// Header sends a header to the member: a name in small letters, and a text.
func Header(name, value string) CallOption {
	return func(o *callOptions) { o.header.Set("Iris-Header-"+name, value) }
}

// Credit is the number of messages that a member may send by a tunnel before they are received, each of which takes 40 bytes
// from the beginning: at least 1; 16 without it.
func Credit(messages int) CallOption {
	return func(o *callOptions) { o.credit = max(1, min(messages, maxCredit)) }
}

func text(name, value string) CallOption { return func(o *callOptions) { o.query.Set(name, value) } }

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

// optionsOf collects options; the error is that of a header that HTTP cannot carry.
func optionsOf(options []CallOption) (*callOptions, error) {
	made := &callOptions{query: url.Values{}, header: http.Header{}, credit: lent}
	for _, option := range options {
		option(made)
	}
	for name, values := range made.header {
		if !headerName.MatchString(name) || strings.ContainsFunc(values[0], unicode.IsControl) {
			return nil, &Error{Code: ErrMalformed, Detail: fmt.Sprintf("%.60q: %.60q cannot be sent as a header", name, values[0])}
		}
	}
	return made, nil
}

var headerName = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")

// bound settles the call's timeout, and returns the context of the whole call: that of the caller, ended when the door
// is silent for longer than the call can take.
func (o *callOptions) bound(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if deadline, has := ctx.Deadline(); o.timeout == 0 && has && timeout == usual {
		o.timeout = min(time.Until(deadline), longest-o.wait)
	} else if o.timeout == 0 {
		o.timeout = timeout
	}
	o.setTimes()
	o.over = time.Now().Add(o.timeout + o.wait)
	return context.WithDeadlineCause(ctx, o.over.Add(usual), errSilent)
}

// again settles the times of another try; false if the time of the call is over.
func (o *callOptions) again() bool {
	left := time.Until(o.over)
	o.timeout = min(o.timeout, left)
	o.wait = min(o.wait, left-o.timeout)
	o.setTimes()
	return left > 0
}

func (o *callOptions) setTimes() {
	for name, d := range map[string]time.Duration{"timeout": o.timeout, "wait": o.wait} {
		if d > 0 {
			o.query.Set(name, seconds(d))
		}
	}
}

var errSilent = &Error{Code: ErrLost, Detail: "the door has not answered in time"}
