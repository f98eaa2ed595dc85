package replica

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// TestReplicaIsSilentAfterMissedAnswers: only consecutive rounds without an answer count, only after a first answer, and only if this
// process itself was on time.
func TestReplicaIsSilentAfterMissedAnswers(t *testing.T) {
	const late = questionEvery + roundLate + time.Millisecond
	for name, c := range map[string]struct {
		rounds string // a: an answer; -: none; z: none, and this process was paused meanwhile
		want   bool
	}{
		"it answers":                      {"aaaaaa", false},
		"it falls silent":                 {"a---", true},
		"not yet":                         {"aa--", false},
		"an answer in between":            {"a--a--", false},
		"it was never heard":              {"------", false},
		"this process was paused":         {"a--z", false},
		"silent after this one's pause":   {"a--z---", true},
		"this process is always too late": {"azzzzzzz", false},
	} {
		t.Run(name, func(t *testing.T) {
			var h hearing
			silent := false
			for _, r := range c.rounds {
				took := questionEvery
				if r == 'z' {
					took = late
				}
				silent = h.asked(r == 'a', took)
			}
			if silent != c.want {
				t.Errorf("after %q: silent %v, want %v", c.rounds, silent, c.want)
			}
		})
	}
}

// TestHungReplicaIsSilentAndReturns: a replica whose connection stays open, but that answers no question, is silent. It returns when it
// answers.
func TestHungReplicaIsSilentAndReturns(t *testing.T) {
	var hangs atomic.Bool
	var answered atomic.Int64
	_, p := serve(t, grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		if hangs.Load() {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		answered.Add(1)
		return h(ctx, req)
	}))
	silent := make(chan bool, 1)
	go func() { silent <- p.Silent(t.Context(), "s1") }()
	supervisortest.Eventually(t, "Silent to hear two answers", func() bool { return answered.Load() >= 2 })
	hangs.Store(true)
	select {
	case is := <-silent:
		if !is {
			t.Error("Silent did not report a hung replica")
		}
	case <-time.After(time.Minute):
		t.Fatal("waited a minute for a hung replica to be silent")
	}
	hangs.Store(false)
	if !p.Returns(t.Context(), "s1") {
		t.Error("the replica did not return")
	}
}
