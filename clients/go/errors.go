package iris

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// Code is the short stable word by which a failure is known.  A member's own words are codes as well.
type Code string

// Codes of the door.  Of each the comment says what was done of the call.
const (
	ErrMalformed       Code = "malformed"              // nothing: an option, a name or the payload cannot be read
	ErrBadGroup        Code = "bad_group"              // nothing: this is no name of a group
	ErrBadRequest      Code = "bad_request"            // nothing: the member cannot read the payload
	ErrNoOutcomes      Code = "no_outcomes"            // nothing: the cluster keeps no outcomes for idempotency keys
	ErrNoToken         Code = "no_token"               // nothing: no token was shown
	ErrWrongToken      Code = "wrong_token"            // nothing: the token is unknown, withdrawn or expired
	ErrEnded           Code = "ended"                  // the door closes, or the token has just ended
	ErrNotAllowed      Code = "not_allowed"            // nothing: the token, or the door's credential, does not permit it
	ErrNoSuchCluster   Code = "no_such_cluster"        // nothing: nobody serves the cluster
	ErrNoSuchOperation Code = "no_such_operation"      // nothing: the member has no such operation
	ErrNoSuchAddress   Code = "no_such_address"        // nothing: this door does not know the address
	ErrNoSuchMethod    Code = "no_such_method"         // nothing: the address is for another method of HTTP
	ErrTooSlow         Code = "too_slow"               // nothing: the payload took more than 30 s to arrive
	ErrTooLarge        Code = "too_large"              // nothing: the payload is larger than the door takes
	ErrKeyReused       Code = "key_reused"             // nothing: the idempotency key stands for another payload
	ErrTooFast         Code = "too_fast"               // nothing: more messages or bytes a second than the token permits
	ErrTooManyCalls    Code = "too_many_calls"         // nothing: as many calls of this client as there may be
	ErrTooManyStreams  Code = "too_many_streams"       // nothing: as many subscriptions and tunnels as there may be
	ErrTooManyTopics   Code = "too_many_subscriptions" // nothing: as many topics are followed as may be
	ErrTooManyShapes   Code = "too_many_shapes"        // nothing: wildcards at too many different places
	ErrTooManyGroups   Code = "too_many_groups"        // nothing: too many groups share one pattern
	ErrTooManyBytes    Code = "too_many_bytes"         // the door keeps too much for this client: an answer may be lost
	ErrTooManyConns    Code = "too_many_connections"   // nothing: as many connections as there may be
	ErrTooMuchRetained Code = "too_much_retained"      // nothing: the client has too much retained
	ErrNoCredit        Code = "no_credit"              // more messages in a tunnel than the door has lent
	ErrFailed          Code = "error"                  // the member's handler failed
	ErrNotDelivered    Code = "not_delivered"          // unknown: the member is lost
	ErrUnknown         Code = "unknown"                // unknown: the member may have done it or not
	ErrEventsLost      Code = "events_lost"            // some subscriber has lost events
	ErrOverloaded      Code = "overloaded"             // nothing: all members are full; see Error.RetryAfter
	ErrNotSent         Code = "not_sent"               // nothing: it was not sent, by the door or to it
	ErrNoBridge        Code = "no_bridge"              // nothing: the bridge that remembers outcomes is away
	ErrTooManyKeys     Code = "too_many_keys"          // nothing: the bridge remembers as many outcomes as it may
	ErrLeaseLost       Code = "lease_lost"             // the lease was over before: another one may have it
	ErrTimeout         Code = "timeout"                // unknown: no reply in time; also errors.Is context.DeadlineExceeded
)

// Codes of this package.
const (
	ErrLost     Code = "lost"     // unknown: the connection to the door broke, or the door fell silent
	ErrClosed   Code = "closed"   // nothing: the Client, Subscription or Tunnel was closed here
	ErrProtocol Code = "protocol" // the other side is no door, or does not keep to the door's protocol
)

// Error makes a Code an error, for errors.Is.
func (c Code) Error() string { return "iris: " + string(c) }

// Error is a failure that the door, a member or the connection to the door caused.
type Error struct {
	Status     int           // as of HTTP: 4xx is for the caller to mend, 5xx is not; 0 if the failure is of this package
	Code       Code          // short stable word
	Detail     string        // text for people
	RetryAfter time.Duration // when to try again; 0 if that is unknown
	Cause      error         // what broke the connection; nil if nothing did
}

// Error returns the code and the text for people.
func (e *Error) Error() string { return fmt.Sprintf("iris: %s: %s", string(e.Code), e.Detail) }

// Is tells whether the target is this failure's Code.  ErrTimeout is context.DeadlineExceeded, too.
func (e *Error) Is(target error) bool {
	return target == error(e.Code) || e.Code == ErrTimeout && target == context.DeadlineExceeded
}

// Unwrap returns what broke the connection.
func (e *Error) Unwrap() error { return e.Cause }

// problem is a failure in the form in which the door tells of it.
type problem struct {
	Status     int     `json:"status"`
	Code       Code    `json:"code"`
	Detail     string  `json:"detail"`
	RetryAfter float64 `json:"retry_after"`
}

func (p problem) failure() *Error {
	return &Error{
		Status: p.Status, Code: p.Code, Detail: p.Detail,
		RetryAfter: time.Duration(p.RetryAfter * float64(time.Second)),
	}
}

// lost is the failure of a call whose connection broke; not_sent if it surely never had one.
func lost(err error) *Error {
	var dialling *net.OpError
	if errors.As(err, &dialling) && dialling.Op == "dial" {
		return &Error{Code: ErrNotSent, Detail: "the door cannot be reached: " + err.Error(), Cause: err}
	}
	return &Error{Code: ErrLost, Detail: "the connection to the door was lost: " + err.Error(), Cause: err}
}

// closed is the failure of what is used after its end.
func closed(what string) *Error { return &Error{Code: ErrClosed, Detail: "the " + what + " is closed"} }

// violation is the failure of a door that does not keep to its protocol.
func violation(format string, arguments ...any) *Error {
	return &Error{Code: ErrProtocol, Detail: fmt.Sprintf(format, arguments...)}
}

// closeProblem reads the reason of a WebSocket's close, "code: detail", behind the status 4000 + status.
func closeProblem(status int, reason string) *Error {
	code, detail, _ := strings.Cut(reason, ": ")
	return &Error{Status: status - 4000, Code: Code(code), Detail: detail}
}

// mayComeBack tells whether another try may succeed where this failure ended a stream.
func mayComeBack(err error) bool {
	var failure *Error
	if !errors.As(err, &failure) {
		return false
	}
	switch failure.Code {
	case ErrLost, ErrNotSent, ErrEnded:
		return true
	case ErrClosed, ErrProtocol:
		return false
	}
	return failure.Status >= 500 || failure.Status == 429
}
