package iris

import (
	"bufio"
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"time"
)

// Answer is what one member says to a survey.
type Answer struct {
	Member  string // the node that answers
	Payload Payload
}

// Survey is a question to all members of a cluster.
type Survey struct {
	EndedBy  string            // what ended it, as "all" or "timeout"; empty until then
	Expected int               // answers if all had answered, once it has ended: one of each program
	Missing  []string          // members that have not answered, once it has ended
	Errors   map[string]*Error // members that have failed, once it has ended

	answers func() (Answer, bool, error)
	end     func()
}

// Survey asks all members of a cluster; their answers come as they are made.
//
// The context bounds the survey until its end.  Close it, or read all answers.
func (c *Client) Survey(ctx context.Context, cluster string, payload any, options ...CallOption) (*Survey, error) {
	var answer *http.Response
	done, err := c.post(ctx, "survey", cluster, payload, time.Second, options, func(begun *http.Response) error {
		answer = begun
		return nil
	})
	if err != nil {
		return nil, err
	}
	survey := &Survey{end: func() { answer.Body.Close(); done() }}
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, maxBody)
	survey.answers = func() (Answer, bool, error) {
		if !lines.Scan() {
			err := lines.Err()
			if err == nil {
				err = errCut
			}
			return Answer{}, false, broken(answer.Request.Context(), err)
		}
		return survey.read(lines.Bytes())
	}
	return survey, nil
}

var errCut = &Error{Code: ErrLost, Detail: "the answer was cut off"}

func (s *Survey) read(line []byte) (Answer, bool, error) {
	var told struct {
		envelope
		Member   string             `json:"member"`
		Error    *problem           `json:"error"`
		EndedBy  string             `json:"ended_by"`
		Expected int                `json:"expected"`
		Missing  []string           `json:"missing"`
		Errors   map[string]problem `json:"errors"`
	}
	if err := json.Unmarshal(line, &told); err != nil {
		return Answer{}, false, violation("a line of a survey cannot be read: %v", err)
	}
	switch {
	case told.Error != nil:
		return Answer{}, false, told.Error.failure()
	case told.EndedBy != "":
		s.EndedBy, s.Expected, s.Missing, s.Errors = told.EndedBy, told.Expected, told.Missing, map[string]*Error{}
		for member, problem := range told.Errors {
			s.Errors[member] = problem.failure()
		}
		return Answer{}, false, nil
	}
	payload, err := told.open()
	return Answer{told.Member, payload}, true, err
}

// All returns the answers as they come.  If the survey fails, the last item is its error; after a whole loop without
// one, EndedBy, Missing and Errors are there.  Leaving the loop closes the survey.
func (s *Survey) All() iter.Seq2[Answer, error] {
	return func(yield func(Answer, error) bool) {
		defer s.Close()
		for s.EndedBy == "" {
			answer, more, err := s.answers()
			if err != nil {
				yield(Answer{}, err)
				return
			}
			if more && !yield(answer, nil) {
				return
			}
		}
	}
}

// Close stops waiting for answers.
func (s *Survey) Close() error {
	s.end()
	return nil
}
