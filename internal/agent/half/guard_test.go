package half

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
)

// TestHalfEndsWhenItsMemoryChangesBetweenSteps: before any step uses the changed memory.
func TestHalfEndsWhenItsMemoryChangesBetweenSteps(t *testing.T) {
	var log bytes.Buffer
	state := &struct{ seq, epoch uint64 }{5, 1}
	var g Guard
	g.Lock()
	g.Watch(&Common{Config: config.Agent{CheckMemory: true}, Half: fault.HalfHost, Log: slog.New(slog.NewTextHandler(&log, nil))}, state)
	var ended string
	g.end = func(damaged string) { ended = damaged }
	g.Unlock()
	for range 3 { // a step's own changes
		g.Lock()
		state.seq++
		g.Unlock()
	}
	if g.Lock(); ended != "" {
		t.Fatalf("ended without a fault: %s", ended)
	}
	g.Unlock()
	g.Unwatched().Lock()
	state.seq ^= 1 << 40
	g.Unwatched().Unlock()
	if g.Lock(); ended == "" {
		t.Error("goes on with a changed number")
	}
	g.Unlock()
	g.warn, ended = true, ""
	state.epoch++
	if g.Lock(); ended != "" || !strings.Contains(log.String(), MsgMemory) {
		t.Errorf("a half that only warns: ended %q, log %q", ended, log.String())
	}
	g.Unlock()
	log.Reset()
	if g.Lock(); log.Len() > 0 {
		t.Errorf("one change is logged twice: %s", log.String())
	}
	g.Unlock()
}

// TestHalfOnlyWarnsAfterRestartsForItsMemory: a mistake of the half itself must not end all halves for good.
func TestHalfOnlyWarnsAfterRestartsForItsMemory(t *testing.T) {
	memory, panicked := halfcore.Cause{Kind: halfcore.Exited, Code: halfcore.ExitMemory}, halfcore.Cause{Kind: halfcore.Exited, Code: 2}
	for _, tc := range []struct {
		cause            halfcore.Cause
		restarts, budget int
		want             bool
	}{
		{memory, 1, 5, false}, {memory, 2, 5, false}, {memory, 3, 5, true}, {memory, 4, 5, true}, {panicked, 4, 5, false},
		{memory, 1, 1, true}, {memory, 1, 2, false}, {memory, 2, 2, true},
	} {
		b, err := halfcore.RecoveryRecord{Half: fault.HalfDNP, State: halfcore.Restarting, Restarts: tc.restarts, Budget: tc.budget,
			Last: &halfcore.Recovery{Cause: tc.cause, Attempt: 1}}.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if got := doubtsMemory(fault.HalfDNP, string(b)); got != tc.want {
			t.Errorf("%s, %d of %d restarts: %t, want %t", tc.cause, tc.restarts, tc.budget, got, tc.want)
		}
		if doubtsMemory(fault.HalfHost, string(b)) {
			t.Error("believes the record of the other half")
		}
	}
	if doubtsMemory(fault.HalfDNP, "") {
		t.Error("only warns although no daemon has restarted it")
	}
	if mayBlameCopy(memory, true) || !mayBlameCopy(panicked, true) {
		t.Error("the copy is good after a change in memory, and may be bad after a panic")
	}
}
