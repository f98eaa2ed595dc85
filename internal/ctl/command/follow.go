package command

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Pauses between two requests of -w. Changes of the fault map arrive as events and trigger requests, at most one per
// stormPause. An answer without a revision follows no events: -w polls it every pollPause, others every backupPause.
const (
	stormPause  = 500 * time.Millisecond
	pollPause   = 2 * time.Second
	backupPause = time.Minute
)

// volatile are the fields whose changes -w does not print: measurements that change all the time.
var volatile = []protoreflect.Name{
	"age", "age_ns", "copies", "delivery", "delivery_old", "dnp_health", "evidence", "host_health", "longest_ms", "registers",
	"share_permille",
}

// follower prints an answer, then its objects when they change.
type follower[M proto.Message] struct {
	a       *App
	output  *OutputFlag
	between Documents
	text    func(M) error
	seen    map[string]string // digest of each object by name
	heading string
}

// follow prints an answer and asks again when the fault map changes, until ctx ends, which is a success.
func follow[M proto.Message](a *App, ctx context.Context, s Session, what string, o *OutputFlag, first M,
	ask func(context.Context, Session) (M, error), text func(M) error) error {
	defer a.Attend(ctx, s)()
	w := &follower[M]{a: a, output: o, between: Documents{Format: o.Format}, text: text}
	if err := w.show(first); err != nil {
		return err
	}
	changes := BeginChanges(ctx, WatchMap(s))
	defer changes.Stop()
	every := pollPause
	if _, ok := any(first).(interface{ GetRevision() uint64 }); ok {
		every = backupPause
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changes.Ended:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("%s: %w", what, Plain(changes.Err()))
		case <-changes.Changed:
		case <-tick.C:
		}
		if err := w.again(ctx, s, what, ask); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(stormPause):
		}
	}
}

// again asks and prints the difference. While no supervisor answers, it prints nothing: the watch waits for one.
func (w *follower[M]) again(ctx context.Context, s Session, what string, ask func(context.Context, Session) (M, error)) error {
	answer, err := ask(ctx, s)
	if err == nil {
		return w.show(answer)
	}
	if ctx.Err() != nil || Unanswered(err) {
		err = nil
	} else {
		err = fmt.Errorf("%s: %w", what, Plain(err))
	}
	return err
}

// show prints the objects of an answer that are new or changed, and names those that it no longer has.
func (w *follower[M]) show(answer M) error {
	first := w.seen == nil
	now, changed := map[string]string{}, map[string]bool{}
	for _, o := range objects(answer) {
		if now[o.name] = Digest(o.m.Interface()); w.seen[o.name] != now[o.name] {
			changed[o.name] = true
		}
	}
	var gone []string
	for name := range w.seen {
		if _, ok := now[name]; !ok {
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	w.seen = now
	if first || len(changed) > 0 {
		if !first {
			answer = only(answer, changed)
		}
		if err := w.print(answer); err != nil {
			return err
		}
	}
	if w.output.Format.Structured() {
		return nil
	}
	for _, name := range gone {
		w.a.Printf("%s is no longer listed\n", Printable(name))
	}
	return nil
}

// print prints an answer: JSON as one line, tables with the heading only once.
func (w *follower[M]) print(answer M) error {
	w.between.Next(w.a)
	if w.output.Format == FormatJSON {
		b, err := w.output.json(answer)
		if err != nil {
			return err
		}
		w.a.Printf("%s\n", b)
		return nil
	}
	if w.output.Format.Structured() {
		return w.output.print(w.a, answer)
	}
	stdout := w.a.Env.Stdout
	var out bytes.Buffer
	w.a.Env.Stdout = &out
	err := w.text(answer)
	w.a.Env.Stdout = stdout
	if err != nil {
		return err
	}
	if w.heading == "" {
		line, _, _ := strings.Cut(out.String(), "\n")
		w.heading = strings.Join(strings.Fields(line), " ")
		w.a.Printf("%s", out.String())
		return nil
	}
	for line := range strings.Lines(out.String()) {
		if strings.Join(strings.Fields(line), " ") != w.heading {
			w.a.Printf("%s", line)
		}
	}
	return nil
}

// only returns the answer with those elements of its lists that keep has.
func only[M proto.Message](answer M, keep map[string]bool) M {
	if wholeName(answer) != "" {
		return answer
	}
	out := proto.CloneOf(answer)
	r := out.ProtoReflect()
	fields := r.Descriptor().Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); f.IsList() && f.Message() != nil {
			r.Clear(f)
		}
	}
	for _, o := range objects(answer) {
		if keep[o.name] {
			r.Mutable(o.list).List().Append(protoreflect.ValueOfMessage(o.m))
		}
	}
	return out
}

// Digest returns the content of an object without its volatile fields, for comparison.
func Digest(m proto.Message) string {
	clone := proto.CloneOf(m)
	calm(clone.ProtoReflect())
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(clone)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// calm clears volatile fields and all durations, also those of messages inside.
func calm(m protoreflect.Message) {
	duration := (*durationpb.Duration)(nil).ProtoReflect().Descriptor().FullName()
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case slices.Contains(volatile, f.Name()), f.Message() != nil && f.Message().FullName() == duration:
			m.Clear(f)
		case f.IsMap() || f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				calm(v.List().Get(i).Message())
			}
		default:
			calm(v.Message())
		}
		return true
	})
}
