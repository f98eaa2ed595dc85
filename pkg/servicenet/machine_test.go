package servicenet

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestOutboxNeverBreaks throws any sequence of events at an outbox, sensible or not, and checks the invariants after
// each.
func TestOutboxNeverBreaks(t *testing.T) { rapid.Check(t, anyEvents) }

func FuzzOutbox(f *testing.F) { f.Fuzz(rapid.MakeFuzz(anyEvents)) }

func anyEvents(t *rapid.T) {
	m := newMachine(t)
	t.Repeat(map[string]func(*rapid.T){
		"":            func(*rapid.T) {},
		"add":         m.add,
		"pass":        m.pass,
		"acked":       m.acked,
		"rail":        m.rail,
		"path failed": m.pathFailed,
		"damaged":     m.damaged,
		"replied":     m.replied,
		"supervisors": m.supervisors,
		"spool":       func(*rapid.T) { m.step(SpoolState{Err: "disk full"}) },
	})
	m.settle()
}

// settleTime is enough for every wait of an outbox but the longest rests.
const settleTime = 15 * time.Second

// settle answers everything from now on. After any history, and with strangers still forging packets, the log becomes
// empty and no fault is reported any more; without forgeries the paths are in order as well.
func (m *machine) settle() {
	lies := rapid.Bool().Draw(m.t, "lies")
	m.targets = []string{"s0", "s1"}
	m.answer = true
	m.step(Supervisors{Targets: m.targets, Leader: "s0"})
	for p := fault.PathDirect; p <= fault.PathTorus; p++ {
		for i := range 3 {
			m.step(RailUp{Path: p, Interface: uint8(i)})
		}
	}
	digest := m.now
	for end := m.now.Add(settleTime); m.now.Before(end); {
		switch {
		case len(m.answers) > 0:
			ev := m.answers[0]
			m.answers = m.answers[1:]
			m.now = m.now.Add(time.Microsecond)
			m.step(ev)
		case !m.now.Before(digest):
			digest = digest.Add(100 * time.Millisecond)
			_, out := m.o.Add(m.now, fault.Report{Digest: true})
			m.take(out)
			if lies {
				m.lie()
			}
		case m.wake.IsZero() || m.wake.After(digest):
			m.now = digest
		default:
			m.now = m.wake
			m.step(Tick{})
		}
	}
	if st := m.o.Stats(); st.Pending > 0 {
		m.t.Fatalf("%d reports wait although everything is answered", st.Pending)
	}
	if m.isolated {
		m.t.Fatal("isolated although everything is answered")
	}
	if s := &m.o.paths; len(m.o.interfaces) > 0 && !lies && (m.state != fault.Normal || s.primary == nil || s.state != PathArmed) {
		m.t.Fatalf("service network %s, paths %s by %v although everything is answered", m.state, s.state, s.primary)
	}
}

// lie does everything that requires no key: errors of every path, damaged packets.
func (m *machine) lie() {
	for _, p := range slices.Clone(m.o.paths.all) {
		m.step(PathFailed{Path: p.id, Why: "forged"})
		m.step(Damaged{Path: fault.PathDirect, Interface: p.id.Interface})
	}
	m.step(Damaged{Path: fault.PathTorus})
}

// reply answers the outbox' datagrams while answer is set.
func (m *machine) reply(out Output) {
	if !m.answer {
		return
	}
	for _, p := range out.Paths {
		if p.Request != nil {
			m.answers = append(m.answers, Replied{Interface: p.Path.Interface, Supervisor: p.Path.Supervisor, Reply: &lofamov1.PathReply{
				Node: "n0-0-0", Half: lofamov1.Half_HALF_HOST, Epoch: uint64(m.o.Epoch()), Id: p.Request.GetId(), Leader: "s0"}})
			m.replies[askedFor{p.Path, p.Request.GetId()}] = true
		}
	}
	for _, s := range out.Send {
		for _, r := range s.Reports {
			for _, st := range []lofamov1.Ack_Status{lofamov1.Ack_RECEIVED, lofamov1.Ack_COMMITTED} {
				ack := NewAcks(st, r.ID)[0]
				ack.Leader = "s0"
				m.answers = append(m.answers, Acked{Ack: ack, Supervisor: s.Target, Path: s.Path, Interface: s.Interface})
			}
		}
	}
}

type machine struct {
	t        *rapid.T
	o        *Outbox
	now      time.Time
	ids      []fault.ReportID // everything ever sent, and digests
	requests []PathMessage
	kept     map[fault.ReportID]bool
	asked    map[askedFor]bool // REQ for alternates
	replies  map[askedFor]bool // REP given
	targets  []string
	isolated bool
	state    fault.State
	wake     time.Time
	answer   bool    // everything from now on
	answers  []Event // still to come
}

type askedFor struct {
	path PathID
	id   uint64
}

func newMachine(t *rapid.T) *machine {
	rails := [][]fault.Path{
		{fault.PathDirect, fault.PathGossip, fault.PathTorus}, {fault.PathDirect, fault.PathTorus}, {fault.PathDirect}, {fault.PathTorus},
	}
	cfg := DefaultOutboxConfig(rapid.SampledFrom(rails).Draw(t, "rails")...)
	cfg.MaxReports = rapid.SampledFrom([]int{1, 3, 40, 1024}).Draw(t, "max")
	if cfg.Interfaces != nil {
		cfg.Interfaces = nil
		for i := range rapid.IntRange(1, 3).Draw(t, "interfaces") {
			cfg.Interfaces = append(cfg.Interfaces, strings.Repeat("i", 38)+fmt.Sprint(i))
		}
	}
	o, err := NewOutbox(origin("n0-0-0/host"), 9, cfg)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, o: o, now: epochStart, kept: map[fault.ReportID]bool{}, asked: map[askedFor]bool{},
		replies: map[askedFor]bool{}, state: fault.Unknown}
	var back []Kept
	for range rapid.IntRange(0, 5).Draw(t, "kept") {
		r := sick(fault.ComponentMemory)
		r.ID = m.drawID(t)
		r.Observations[0].Node = "n0-0-0"
		back = append(back, Kept{r, time.Duration(rapid.IntRange(-1, 1000).Draw(t, "age")) * time.Second})
		m.kept[r.ID] = true
	}
	m.take(o.Restore(m.now, back))
	return m
}

func (m *machine) drawID(t *rapid.T) fault.ReportID {
	if len(m.ids) > 0 && rapid.IntRange(0, 9).Draw(t, "known") > 0 {
		return rapid.SampledFrom(m.ids).Draw(t, "id")
	}
	return fault.ReportID{Origin: origin(rapid.SampledFrom([]string{"n0-0-0/host", "n0-0-0/dnp"}).Draw(t, "origin")),
		Epoch: fault.Epoch(rapid.IntRange(0, 11).Draw(t, "epoch")), Seq: fault.Seq(rapid.IntRange(0, 9).Draw(t, "seq"))}
}

func (m *machine) drawPath(t *rapid.T) PathID {
	return PathID{uint8(rapid.IntRange(0, 3).Draw(t, "interface")),
		rapid.SampledFrom([]string{"s0", "s1", "s2", "", "x"}).Draw(t, "supervisor")}
}

func (m *machine) step(ev Event) { m.take(m.o.Step(m.now, ev)) }

func (m *machine) add(t *rapid.T) {
	r := fault.Report{Digest: rapid.IntRange(0, 3).Draw(t, "digest") == 0}
	for range rapid.IntRange(0, 20).Draw(t, "observations") {
		r.Observations = append(r.Observations, fault.Observation{Component: rapid.SampledFrom(fault.Components()).Draw(t, "component"),
			State: fault.Sick, Kind: fault.KindSelf, Detail: rapid.SampledFrom([]string{"", strings.Repeat("x", 120)}).Draw(t, "detail")})
	}
	for range rapid.IntRange(1, 5).Draw(t, "times") {
		_, out := m.o.Add(m.now, r)
		m.take(out)
	}
}

func (m *machine) pass(t *rapid.T) {
	for range rapid.IntRange(1, 20).Draw(t, "times") {
		m.now = m.now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 10, 30, 100, 1000, 60000}).Draw(t, "ms")) * time.Millisecond)
		m.step(Tick{})
	}
}

func (m *machine) acked(t *rapid.T) {
	a := NewAcks(lofamov1.Ack_Status(rapid.IntRange(0, 4).Draw(t, "status")), m.drawID(t), m.drawID(t), m.drawID(t))
	p := m.drawPath(t)
	for _, ack := range a {
		ack.Leader = m.drawPath(t).Supervisor
		ack.HighestEpoch = uint64(rapid.IntRange(0, 30).Draw(t, "highest"))
		m.step(Acked{Ack: ack, Supervisor: p.Supervisor, Interface: p.Interface, Path: fault.Path(rapid.IntRange(0, 4).Draw(t, "path"))})
	}
}

func (m *machine) rail(t *rapid.T) {
	p, i := fault.Path(rapid.IntRange(0, 4).Draw(t, "path")), m.drawPath(t).Interface
	if rapid.Bool().Draw(t, "up") {
		m.step(RailUp{Path: p, Interface: i})
	} else {
		m.step(RailDown{Path: p, Interface: i})
	}
}

func (m *machine) pathFailed(t *rapid.T) { m.step(PathFailed{Path: m.drawPath(t)}) }

func (m *machine) damaged(t *rapid.T) {
	p := m.drawPath(t)
	m.step(Damaged{Path: fault.Path(rapid.IntRange(0, 4).Draw(t, "path")), Interface: p.Interface, Supervisor: p.Supervisor})
}

func (m *machine) replied(t *rapid.T) {
	p, id := m.drawPath(t), uint64(rapid.IntRange(0, 20).Draw(t, "id"))
	if len(m.requests) > 0 && rapid.IntRange(0, 4).Draw(t, "fitting") > 0 {
		r := m.requests[len(m.requests)-1-rapid.IntRange(0, min(3, len(m.requests)-1)).Draw(t, "back")]
		p, id = r.Path, r.Request.GetId()
	}
	m.replies[askedFor{p, id}] = true
	m.step(Replied{Interface: p.Interface, Supervisor: p.Supervisor, Reply: &lofamov1.PathReply{
		Node: "n0-0-0", Half: lofamov1.Half_HALF_HOST, Epoch: uint64(m.o.Epoch()), Id: id, Leader: m.drawPath(t).Supervisor}})
}

func (m *machine) supervisors(t *rapid.T) {
	m.targets = rapid.SampledFrom([][]string{nil, {"s0"}, {"s0", "s1"}, {"s2", "s0", "s1", "s1"}, {"s1", "s2"}}).Draw(t, "targets")
	m.step(Supervisors{Targets: m.targets, Leader: m.drawPath(t).Supervisor})
}

// take applies an output, and then checks the outbox.
func (m *machine) take(out Output) {
	t := m.t
	t.Helper()
	if !out.Wake.IsZero() && !out.Wake.After(m.now) {
		t.Fatalf("the wake is %v in the past", m.now.Sub(out.Wake))
	}
	if out.NewEpoch != 0 && out.NewEpoch != m.o.Epoch() {
		t.Fatalf("new epoch %d, in use %d", out.NewEpoch, m.o.Epoch())
	}
	if out.Isolated != m.isolated != out.IsolatedChanged || out.ServiceNetwork != m.state != out.Changed {
		t.Fatalf("changes untold: %+v", out)
	}
	if out.Dropped == 0 && out.DroppedWhat != "" {
		t.Fatalf("dropped %d, what %q", out.Dropped, out.DroppedWhat)
	}
	m.isolated, m.state, m.wake = out.Isolated, out.ServiceNetwork, out.Wake
	for _, r := range out.Keep {
		m.kept[r.ID] = true
	}
	for _, id := range out.Forget {
		delete(m.kept, id)
	}
	for _, s := range out.Send {
		m.checkSend(s)
	}
	for _, p := range out.Paths {
		if p.Request != nil {
			m.requests = append(m.requests, p)
			m.asked[askedFor{p.Path, p.Request.GetId()}] = p.Request.GetAlternate()
		}
		if (p.Request == nil) == (p.Ack == nil) || m.o.paths.find(p.Path) == nil {
			t.Fatalf("path message %+v", p)
		}
	}
	m.checkLog()
	m.checkPaths()
	m.checkStatus()
	m.reply(out)
}

func (m *machine) checkSend(s Send) {
	t := m.t
	t.Helper()
	digest := true
	for _, r := range s.Reports {
		digest = digest && r.Digest
		m.ids = append(m.ids, r.ID)
		for _, e := range m.o.log { // the window of the receivers
			if id := e.report.ID; !r.Digest && !e.report.Digest && id.Epoch == r.ID.Epoch && e.via == 0 && r.ID.Seq >= id.Seq+WindowBits {
				t.Fatalf("%s is sent while %s waits", r.ID, id)
			}
		}
	}
	if len(s.Reports) == 0 || len(s.Reports) > MaxReports || s.Attempt < 1 || s.Session &&
		(!digest || s.Attempt > 1 || s.Path != fault.PathDirect) {
		t.Fatalf("send %+v", s)
	}
	if (s.Path == fault.PathDirect) != (s.Target != "") || s.Target != "" && !slices.Contains(m.targets, s.Target) {
		t.Fatalf("%s to %q, there are %v", s.Path, s.Target, m.targets)
	}
	limit := usualRoom.by(fault.PathTorus)
	if s.Path == fault.PathDirect {
		limit = usualRoom.by(fault.PathDirect)
	}
	if n := proto.Size(EncodeReports(s.Reports, s.Status)); n > limit {
		t.Fatalf("%d reports by %s: %d bytes, want at most %d", len(s.Reports), s.Path, n, limit)
	}
}

func (m *machine) checkLog() {
	m.t.Helper()
	n := 0
	for i, e := range m.o.log {
		if !e.report.Digest {
			n++
			if !m.kept[e.report.ID] {
				m.t.Fatalf("%s is in the log and was not kept", e.report.ID)
			}
		}
		if i > 0 {
			if a, b := m.o.log[i-1].report.ID, e.report.ID; a.Epoch > b.Epoch || a.Epoch == b.Epoch && a.Seq >= b.Seq {
				m.t.Fatalf("%s before %s", a, b)
			}
		}
	}
	if n != m.o.reports || n != len(m.kept) || n > m.o.cfg.MaxReports {
		m.t.Fatalf("%d reports in the log, %d counted, %d kept, at most %d", n, m.o.reports, len(m.kept), m.o.cfg.MaxReports)
	}
}

func (m *machine) checkPaths() {
	m.t.Helper()
	open := 0
	for _, f := range m.o.direct.flights {
		if !f.answered && !f.missed {
			open++
		}
	}
	if open != m.o.direct.open {
		m.t.Fatalf("%d flights are open, %d counted", open, m.o.direct.open)
	}
	s := &m.o.paths
	x := s.exchange
	ok := false
	switch s.state {
	case 0:
		ok = len(m.o.interfaces) == 0 && s.primary == nil && s.alternate == nil && x.kind == 0
	case PathMigrated:
		ok = s.alternate == nil && (s.primary == nil) == (len(s.all) == 0) && (x.kind == 0 || x.kind == requestSession)
	case PathRearm:
		ok = s.primary != nil && s.alternate != nil && x.kind == requestAlternate && x.path == s.alternate
	case PathArmed:
		ok = s.primary != nil && s.alternate != nil && (x.kind == 0 || x.kind == requestSession) &&
			m.asked[askedFor{s.alternate.id, s.alternate.proven}] && m.replies[askedFor{s.alternate.id, s.alternate.proven}] &&
			s.alternate.misses == 0 && !m.o.interfaceDown(s.alternate)
	case PathReestablishing:
		ok = s.primary == nil && s.alternate == nil && x.kind == requestAny && len(s.all) > 1
	}
	if s.primary != nil && (s.primary == s.alternate || m.o.paths.find(s.primary.id) != s.primary) {
		ok = false
	}
	if s.alternate != nil && m.o.paths.find(s.alternate.id) != s.alternate || x.path != nil && m.o.paths.find(x.path.id) != x.path {
		ok = false
	}
	if !ok {
		m.t.Fatalf("paths %s: primary %+v, alternate %+v, exchange %+v", s.state, s.primary, s.alternate, x)
	}
}

func (m *machine) checkStatus() {
	m.t.Helper()
	r := sick(fault.ComponentMemory)
	r.ID = fault.ReportID{Origin: origin("n0-0-0/host"), Epoch: 1, Seq: 1}
	r.Observations[0].Node = "n0-0-0"
	msg := &lofamov1.Message{Body: &lofamov1.Message_Reports{Reports: EncodeReports([]fault.Report{r}, m.o.Status(m.now))}}
	if _, err := checkMessage(msg); err != nil {
		m.t.Fatalf("no receiver takes the status: %v", err)
	}
}

// naiveAlternate looks for the wanted alternate, wish by wish.
func naiveAlternate(all []PathID, usable []bool, primary PathID, last int) int {
	wishes := []func(PathID) bool{
		func(p PathID) bool { return p.Interface != primary.Interface && p.Supervisor != primary.Supervisor },
		func(p PathID) bool { return p.Interface != primary.Interface },
		func(p PathID) bool { return p.Supervisor != primary.Supervisor },
	}
	for _, wish := range wishes {
		i := last
		for range all {
			if i++; i == len(all) {
				i = 0
			}
			if usable[i] && wish(all[i]) {
				return i
			}
		}
	}
	return -1
}

func TestNextAlternateAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []PathID
		var usable []bool
		supervisors := rapid.IntRange(1, 5).Draw(t, "supervisors")
		for i := range rapid.IntRange(1, 8).Draw(t, "interfaces") {
			for s := range supervisors {
				all = append(all, PathID{uint8(i), fmt.Sprint("s", s)})
				usable = append(usable, rapid.Bool().Draw(t, "usable"))
			}
		}
		primary := rapid.SampledFrom(all).Draw(t, "primary")
		last := rapid.IntRange(0, len(all)-1).Draw(t, "last")
		want := naiveAlternate(all, usable, primary, last)
		got := nextAlternate(len(all), func(i int) (PathID, bool) { return all[i], usable[i] }, primary, last)
		if got != want {
			t.Fatalf("%d, want %d", got, want)
		}
	})
}
