package supervisor

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// played is a part that notes its calls.
type played struct {
	name  string
	log   *[]string
	fails error
	hangs bool // its stop ends only with its context
}

func (p *played) start(*Supervisor) error {
	*p.log = append(*p.log, "+"+p.name)
	return p.fails
}

func (p *played) stop(ctx context.Context) error {
	*p.log = append(*p.log, "-"+p.name)
	if p.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

// TestPartsStopInReverse: parts stop in the reverse order of starting. The stop includes a part whose start failed, and
// leaves out parts that were not started. A part that hangs delays the others by its bound.
func TestPartsStopInReverse(t *testing.T) {
	broken := errors.New("no address")
	for _, tc := range []struct {
		name   string
		fails  error
		hangs  bool
		want   string
		errors string
		took   time.Duration
	}{
		{"all start", nil, false, "+a +b +c -c -b -a", "", 0},
		{"one fails", broken, false, "+a +b -b -a", "", 0},
		{"one hangs", nil, true, "+a +b +c -c -b -a", "stop b: context deadline exceeded", 2 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log []string
				l := newLifecycle()
				err := l.start(nil, []step{
					{"a", time.Second, &played{name: "a", log: &log}},
					{"b", 2 * time.Second, &played{name: "b", log: &log, fails: tc.fails, hangs: tc.hangs}},
					{"c", time.Second, &played{name: "c", log: &log}},
				})
				if !errors.Is(err, tc.fails) {
					t.Errorf("start: %v: want %v", err, tc.fails)
				}
				began := time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				cancel() // of the caller: the parts still get their time
				text := ""
				if err := l.stop(ctx, slog.New(slog.DiscardHandler)); err != nil {
					text = err.Error()
				}
				if got := strings.Join(log, " "); got != tc.want || text != tc.errors || time.Since(began) != tc.took {
					t.Errorf("%s, %q after %v: want %s, %q after %v", got, text, time.Since(began), tc.want, tc.errors, tc.took)
				}
				before := slices.Clone(log)
				if err := l.stop(ctx, slog.New(slog.DiscardHandler)); err != nil || !slices.Equal(log, before) {
					t.Errorf("the second stop: %v, %v", err, log)
				}
			})
		})
	}
}

// TestGossipLeavesBeforeSocketsFallSilent: a replica that stops resigns first, then leaves the gossip pool, and only
// then stops to read its sockets and to serve.
func TestGossipLeavesBeforeSocketsFallSilent(t *testing.T) {
	steps := (&Supervisor{}).parts()
	at := func(name string) int {
		i := slices.IndexFunc(steps, func(p step) bool { return p.name == name })
		if i < 0 {
			t.Fatalf("no part %s", name)
		}
		return i
	}
	if at("gossip") > at("leadership") {
		t.Error("gossip leaves before the lease is resigned")
	}
	for _, name := range []string{"workers", "web page", "HTTP service", "gRPC service", "ingest", "listeners"} {
		if at("gossip") < at(name) {
			t.Errorf("%s stops before gossip leaves", name)
		}
	}
}
