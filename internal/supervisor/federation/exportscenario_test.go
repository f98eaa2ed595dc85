package federation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/golden"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// scenarioArgs are the words of a command: the first is its name, "key=value" are named, others are flags.
type scenarioArgs map[string]string

func parseScenario(words []string) (command string, a scenarioArgs) {
	a = make(scenarioArgs)
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		a[key] = value
	}
	return words[0], a
}

func (a scenarioArgs) n(key string) uint64 {
	n, _ := strconv.ParseUint(a[key], 10, 64)
	return n
}

func (a scenarioArgs) is(key string) bool {
	_, ok := a[key]
	return ok
}

// change is "prev=3 rev=5 first=2 events=2 docs=nodes/n0-0-0,groups/g [snapshot] [more]".
func (a scenarioArgs) change() *lofamov1.UpstreamChange {
	c := &lofamov1.UpstreamChange{Previous: a.n("prev"), Revision: a.n("rev"), FirstEvent: a.n("first"), Snapshot: a.is("snapshot"),
		More: a.is("more")}
	for range a.n("events") {
		c.Events = append(c.Events, &lofamov1.Event{Node: "n0-0-0", Component: "host"})
	}
	for key := range strings.SplitSeq(a["docs"], ",") {
		if key != "" {
			c.Documents = append(c.Documents, &lofamov1.Document{Key: key, Value: make([]byte, a.n("size"))})
		}
	}
	return c
}

func describeChange(c *lofamov1.UpstreamChange) string {
	s := fmt.Sprintf("revision %d after %d", c.GetRevision(), c.GetPrevious())
	if c.GetSnapshot() {
		s = fmt.Sprintf("snapshot of revision %d", c.GetRevision())
	}
	s += fmt.Sprintf(": %d events from %d, %d documents", len(c.GetEvents()), c.GetFirstEvent(), len(c.GetDocuments()))
	if c.GetMore() {
		s += ", more to come"
	}
	return s
}

func TestLedgerScenarios(t *testing.T) {
	golden.Files(t, "testdata/ledger/*.txt", func(t *testing.T, text string) string {
		begin := time.Unix(1000, 0)
		now := begin
		cfg := ledgerConfig{
			Region: "west", Dims: "4x4x4", Beat: time.Second, Misses: 3, MaxBytes: 4096,
			Member: func(id string) bool { return id != "n3-0-0" },
		}
		l := newLedger(cfg, now, Position{}, false)
		return golden.Lines(t, text, "  ", func(words []string) ([]string, error) {
			cmd, a := parseScenario(words)
			if d, err := time.ParseDuration(a["at"]); err == nil {
				now = begin.Add(d)
			}
			s := streamID(a.n("stream"))
			var ev ledgerInput
			switch cmd {
			case "store": // what another leader of the parent has left
				cfg.Reconnect, _ = time.ParseDuration(a["reconnect"])
				l = newLedger(cfg, now, Position{Revision: a.n("rev"), NextEvent: a.n("next"), Term: a.n("term"), Store: a["of"]}, a.is("cut"))
				return nil, nil
			case "hello":
				dims := "4x4x4"
				if a.is("dims") {
					dims = a["dims"]
				}
				ev = ledgerHello{s, &lofamov1.UpstreamHello{Region: "west", Dims: dims, Term: a.n("term"), Revision: a.n("rev"),
					NextEvent: a.n("next"), Store: a["of"], FirstEvent: a.n("own"), RestoredFrom: a["from"]}}
			case "change":
				ev = ledgerPart{s, a.change()}
			case "alive":
				ev = ledgerAlive{s, a.n("rev")}
			case "closed":
				ev = ledgerClosed{s}
			case "committed":
				ev = ledgerCommitted{a.n("rev"), int(a.n("units"))}
			case "deaf":
				ev = ledgerDeaf{}
			case "tick":
				ev = ledgerTick{}
			default:
				return nil, fmt.Errorf("command %q", cmd)
			}
			return printLedger(l.Step(now, ev), begin), nil
		})
	})
}

func printLedger(o ledgerOutput, begin time.Time) []string {
	var out []string
	for _, r := range o.Replies {
		switch {
		case r.Refusal != 0:
			out = append(out, fmt.Sprintf("to %d: refused, %s: %s", r.Stream, r.Refusal, r.Text))
		case r.Message.GetResume() != nil:
			out = append(out, fmt.Sprintf("to %d: resume after %d, with event %d", r.Stream, r.Message.GetResume().GetRevision(),
				r.Message.GetResume().GetNextEvent()))
		default:
			out = append(out, fmt.Sprintf("to %d: committed %d", r.Stream, r.Message.GetCommitted().GetRevision()))
		}
	}
	if u := o.Apply; u != nil {
		s := fmt.Sprintf("apply revision %d: %d events from %d, %d documents", u.After.Revision, len(u.Events), u.First, len(u.Documents))
		if u.Snapshot {
			s += ", all there are"
		}
		if u.Lost > 0 {
			s += fmt.Sprintf(", %d events lost", u.Lost)
		}
		out = append(out, s)
	}
	if o.Lost {
		out = append(out, "cut off")
	}
	if o.Back {
		out = append(out, "present")
	}
	if !o.Wake.IsZero() {
		out = append(out, "wake at "+o.Wake.Sub(begin).String())
	}
	return out
}

func TestFeedScenarios(t *testing.T) {
	golden.Files(t, "testdata/feed/*.txt", func(t *testing.T, text string) string {
		f := newFeed(feedConfig{Region: "west", Dims: "4x4x4", Window: 2})
		return golden.Lines(t, text, "  ", func(words []string) ([]string, error) {
			cmd, a := parseScenario(words)
			var in feedInput
			switch cmd {
			case "begin":
				in = feedBegin{Term: a.n("term"), Revision: a.n("rev"), NextEvent: a.n("next"), Store: a["of"], FirstEvent: a.n("own"), From: a["from"]}
			case "resume":
				in = feedResume{a.n("rev"), a.n("next")}
			case "update":
				in = feedUpdate{a.change()}
			case "copied":
				in = feedCopied{a.change()}
			case "compacted":
				in = feedCompacted{}
			case "acked":
				in = feedAcked{a.n("rev")}
			case "beat":
				in = feedBeat{}
			case "ended":
				in = feedEnded{}
			default:
				return nil, fmt.Errorf("command %q", cmd)
			}
			return append(printFeed(f.Step(in)), f.state.String()), nil
		})
	})
}

func printFeed(o feedOrders) []string {
	var out []string
	for _, m := range o.Send {
		switch b := m.GetBody().(type) {
		case *lofamov1.UpstreamReportRequest_Hello:
			h := b.Hello
			s := fmt.Sprintf("send hello of %s: term %d, revision %d, next event %d", h.GetRegion(), h.GetTerm(), h.GetRevision(), h.GetNextEvent())
			if h.GetStore() != "" {
				s += fmt.Sprintf(", store %s with events of its own from %d", h.GetStore(), h.GetFirstEvent())
			}
			out = append(out, s)
		case *lofamov1.UpstreamReportRequest_Change:
			out = append(out, "send "+describeChange(b.Change))
		case *lofamov1.UpstreamReportRequest_Alive:
			out = append(out, fmt.Sprintf("send alive, nothing more up to %d", b.Alive.GetRevision()))
		}
	}
	switch o.Read {
	case ReadFollow:
		out = append(out, fmt.Sprintf("read what follows %d", o.From))
	case ReadCopy:
		out = append(out, fmt.Sprintf("read all, and events from %d on", o.From))
	case ReadNone:
		out = append(out, "read nothing")
	case ReadOn:
	}
	return out
}

// TestEveryEnumHasOwnNames: the values of every enum have names, and no two share one.
func TestEveryEnumHasOwnNames(t *testing.T) {
	var names []string
	for i := range 7 {
		names = append(names, Refusal(i).String(), feedRead(i).String(), feedState(i).String())
	}
	slices.Sort(names)
	for i, n := range names {
		if n == "" || i > 0 && n == names[i-1] {
			t.Errorf("%q: not one name each", n)
		}
	}
}

// TestPartsJoinToTheirChange: for all sizes, the joined parts equal the change, and no part exceeds the limit.
func TestPartsJoinToTheirChange(t *testing.T) {
	for _, tc := range []struct{ events, docs, size, parts int }{{0, 0, 0, 1}, {1, 1, 10, 1}, {3, 0, PartBytes, 3},
		{5, 40, PartBytes / 8, 7}} {
		c := &lofamov1.UpstreamChange{Previous: 3, Revision: 4, FirstEvent: 7}
		for range tc.events {
			c.Events = append(c.Events, &lofamov1.Event{Reason: strings.Repeat("x", tc.size)})
		}
		for i := range tc.docs {
			c.Documents = append(c.Documents, &lofamov1.Document{Key: fmt.Sprint(i), Value: make([]byte, tc.size)})
		}
		parts := splitChange(c)
		if len(parts) != tc.parts {
			t.Errorf("%+v: %d parts", tc, len(parts))
		}
		next, docs := uint64(7), 0
		for i, p := range parts {
			if p.GetFirstEvent() != next || p.GetMore() != (i < len(parts)-1) || p.GetRevision() != 4 || p.GetPrevious() != 3 {
				t.Errorf("%+v: part %d: %s, want event %d", tc, i, describeChange(p), next)
			}
			next += uint64(len(p.GetEvents()))
			docs += len(p.GetDocuments())
		}
		if next != 7+uint64(tc.events) || docs != tc.docs {
			t.Errorf("%+v: %d events, %d documents", tc, next-7, docs)
		}
	}
}

// TestAnotherStoreInParts: a resume between two transactions of another store's snapshot shows from the position
// that it belongs to that store and that its revision is not reached.
func TestAnotherStoreInParts(t *testing.T) {
	u := Unit{Snapshot: true, First: 6, After: Position{Revision: 99, NextEvent: 9, Term: 3, Store: "b"}}
	for range 3 {
		u.Events = append(u.Events, &lofamov1.Event{Node: "n0-0-0", Component: "host"})
	}
	writes, err := packUnits([]Unit{u}, Position{Revision: 40, NextEvent: 20, Term: 5, Store: "a"}, writeLimits{Ops: 2, Bytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var got []Position
	for _, w := range writes {
		got = append(got, w.After)
	}
	want := []Position{{NextEvent: 7, Term: 3, Store: "b"}, {NextEvent: 8, Term: 3, Store: "b"}, u.After}
	if !slices.Equal(got, want) {
		t.Errorf("positions %+v, want %+v", got, want)
	}
}
