// Package iris addresses the clusters of an Iris realm by name, through a door.
//
//	client, err := iris.Dial(ctx, "http://127.0.0.1:8080", iris.Options{Token: token})
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//	reply, err := client.Request(ctx, "greeters", "world")
//
// A context bounds every call: its deadline travels to the member that works on it, and the member is cancelled when
// the context is.  Everything here may be used by several goroutines at a time, except that one goroutine at a time
// reads a Survey.
//
// Failures that the door, a member or the connection cause are of type *[Error]; errors.Is compares them with the
// constants of type [Code], such as [ErrOverloaded], and with a member's own words: errors.Is(err, iris.Code("no-name")).
package iris
