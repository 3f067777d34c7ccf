package iris

import (
	"encoding/json"
	"fmt"
	"reflect"
)

// Format says how the data of a Payload are read.  Its text is the media type.
type Format string

// Formats of payloads.
const (
	Bytes       Format = "application/octet-stream" // bytes as they are
	JSON        Format = "application/json"         // a value that JSON can hold
	MessagePack Format = "application/msgpack"      // a value that JSON cannot hold, such as bytes in a list
)

// Payload is what a message carries.
//
// Where a call takes a payload of type any, a Payload goes as it is, a []byte as bytes, and everything else as
// encoding/json writes it.
type Payload struct {
	Format Format
	Data   []byte
}

// Decode stores the payload in what v points to: JSON by encoding/json, bytes in a []byte.
//
// It fails if the value does not fit, and for MessagePack, whose Data are for a library of MessagePack.
func (p Payload) Decode(v any) error {
	switch p.Format {
	case JSON:
		return json.Unmarshal(p.Data, v)
	case Bytes:
		if target := reflect.ValueOf(v); target.Kind() == reflect.Pointer && !target.IsNil() {
			if data := reflect.ValueOf(p.Data); data.Type().AssignableTo(target.Elem().Type()) {
				target.Elem().Set(data)
				return nil
			}
		}
	}
	return fmt.Errorf("iris: a payload of %s does not fit a %T", p.Format, v)
}

// payloadOf returns a value that a program sends as a payload.
func payloadOf(value any) (Payload, error) {
	switch value := value.(type) {
	case Payload:
		if _, known := encodings[value.Format]; !known || value.Format == JSON && !json.Valid(value.Data) {
			return Payload{}, fmt.Errorf("iris: a Payload of the format %.40q, which its data do not have", value.Format)
		}
		return value, nil
	case []byte:
		return Payload{Bytes, value}, nil
	}
	data, err := json.Marshal(value)
	if err != nil {
		return Payload{}, fmt.Errorf("iris: the payload cannot be sent: %w", err)
	}
	return Payload{JSON, data}, nil
}

// envelope is a payload in a line of JSON.
type envelope struct {
	Payload  json.RawMessage `json:"payload"`
	Encoding string          `json:"encoding,omitempty"`
}

// encodings are those of envelopes.
var encodings = map[Format]string{JSON: "", Bytes: "base64", MessagePack: "msgpack"}

func (e envelope) open() (Payload, error) {
	if e.Encoding == "" && e.Payload != nil {
		return Payload{JSON, e.Payload}, nil
	}
	for format, encoding := range encodings {
		var data []byte
		if encoding == e.Encoding && json.Unmarshal(e.Payload, &data) == nil && data != nil {
			return Payload{format, data}, nil
		}
	}
	return Payload{}, violation("an envelope of encoding %.40q that cannot be read", e.Encoding)
}

// envelope returns a payload that payloadOf has checked as a part of a line of JSON.
func (p Payload) envelope() envelope {
	data := p.Data
	if p.Format != JSON {
		data, _ = json.Marshal(data) // bytes have a form in JSON
	}
	return envelope{data, encodings[p.Format]}
}
