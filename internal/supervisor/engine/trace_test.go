package engine

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// logged is a log that may be read while it is being written.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// traced is one line of the log.
type traced struct {
	Msg, Report, Content string
	Reports              []string
	Position             servicenet.InboxPosition
}

func (l *logged) lines(t *testing.T) []traced {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []traced
	for dec := json.NewDecoder(bytes.NewReader(l.b.Bytes())); dec.More(); {
		var line traced
		if err := dec.Decode(&line); err != nil {
			t.Fatal(err)
		}
		switch line.Msg {
		case TraceTerm, TracePosition, TraceTaken, TraceCommitted:
			out = append(out, line)
		}
	}
	return out
}

// The debug log shows each taken and committed report once, and the positions where the next term continues.
func TestDebugLogShowsEachReportOnce(t *testing.T) {
	st := memstore.New(100)
	at := func(l *logged, level slog.Level) func(*Config) {
		return func(c *Config) { c.Logger = slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: level})) }
	}
	var first, next, quiet logged
	h := start(t, st, at(&first, slog.LevelDebug))
	id := h.report(1, false, fault.ComponentMemory, fault.Sick)
	h.box.await(t, 1)
	h.report(1, false, fault.ComponentMemory, fault.Sick) // a copy
	h.report(7, true, fault.ComponentMemory, fault.Sick)  // a digest
	h.box.await(t, 2)
	content := Fingerprint(fault.Report{Observations: []fault.Observation{
		{Node: "n1-0-0", Component: fault.ComponentMemory, State: fault.Sick, Kind: fault.KindSelf},
	}})
	want := []traced{{Msg: TraceTerm}, {Msg: TraceTaken, Report: id.String(), Content: content},
		{Msg: TraceCommitted, Reports: []string{id.String()}}}
	if got := first.lines(t); !reflect.DeepEqual(got, want) {
		t.Errorf("the log says %+v, want %+v", got, want)
	}
	start(t, st, at(&next, slog.LevelDebug))
	if got := next.lines(t); len(got) != 2 || got[1].Msg != TracePosition || got[1].Position.Origin != id.Origin ||
		got[1].Position.Highest != 1 {
		t.Errorf("the next term begins with %+v", got)
	}
	h = start(t, st, at(&quiet, slog.LevelInfo))
	h.report(2, false, fault.ComponentMemory, fault.Normal)
	h.box.await(t, 1)
	if got := quiet.lines(t); len(got) != 0 {
		t.Errorf("at level info it says %+v", got)
	}
}

func TestFingerprintIgnoresIDAndAge(t *testing.T) {
	base := func() fault.Report {
		return fault.Report{Uptime: time.Second, Observations: []fault.Observation{
			{Node: "a", Component: fault.ComponentMemory, State: fault.Sick, Kind: fault.KindSelf, Detail: "d"}, {Node: "b"},
		}}
	}
	same := base()
	same.ID.Seq, same.Observations[0].Age = 9, time.Minute
	if Fingerprint(same) != Fingerprint(base()) {
		t.Error("id or age is in the fingerprint")
	}
	for i, change := range []func(*fault.Report){
		func(r *fault.Report) { r.Digest = true },
		func(r *fault.Report) { r.Partial = true },
		func(r *fault.Report) { r.Registers.HostWatchdog = 1 },
		func(r *fault.Report) { r.Uptime++ },
		func(r *fault.Report) { r.Observations = r.Observations[:1] },
		func(r *fault.Report) { r.Observations[0].Node = "c" },
		func(r *fault.Report) { r.Observations[0].Component = fault.ComponentPower },
		func(r *fault.Report) { r.Observations[0].State = fault.Failed },
		func(r *fault.Report) { r.Observations[0].Kind = fault.KindSilence },
		func(r *fault.Report) { r.Observations[0].Detail = "e" },
	} {
		r := base()
		if change(&r); Fingerprint(r) == Fingerprint(base()) {
			t.Errorf("change %d does not show", i)
		}
	}
}
