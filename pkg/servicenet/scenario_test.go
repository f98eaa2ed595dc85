package servicenet

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/golden"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestOutboxScenarios plays testdata/outbox and testdata/paths. A line that begins with '>' is the outbox's expected
// answer to the previous command; '#' begins a comment. Times are since the start. Commands:
//
//	new ORIGIN RAILS [field=value...]       first line: rails as direct,gossip,torus; fields
//	    max=N        MaxReports           interfaces=N  service interfaces, if0 and so on
//	    epoch=N      of the start        spool=1       print what is for the spool
//	    paths=1      print the path messages and states as well
//	TIME supervisors ID,ID,... [LEADER]
//	TIME add COMPONENT STATE [COMPONENT STATE ...]    TIME digest (as add)
//	TIME received|committed|stale SUPERVISOR SEQ,SEQ PATH [leader=ID] [highest=EPOCH] [epoch=EPOCH]
//	    [by=INTERFACE]
//	TIME up|down PATH [INTERFACE]
//	TIME failed INTERFACE>SUPERVISOR     TIME damaged PATH [INTERFACE>SUPERVISOR]
//	TIME reply INTERFACE>SUPERVISOR ID   a REP
//	TIME kept AGE EPOCH:SEQ COMPONENT    a report that the spool gave back, collected until
//	TIME restore
//	TIME reps                  from now on supervisors answer REQ after 1 ms, as with auto direct
//	TIME status
//	TIME cut [INTERFACE...]    from now on nothing comes or goes by these interfaces
//	TIME auto [PATH...]    from now on supervisors answer both acks 1 ms after what comes by these
//	TIME digests PERIOD    from now on a digest every period (0: no more)
//	TIME dead [ID...]      from now on these supervisors do not
//	TIME stopped           the half was stopped until now: it missed its wakes
//	TIME run               only lets the time pass
//	TIME stats
//
// Between commands the outbox is stepped at each Wake that it asked for.
func TestOutboxScenarios(t *testing.T) {
	for _, files := range []string{"testdata/outbox/*.txt", "testdata/paths/*.txt"} {
		playOutbox(t, files)
	}
}

func playOutbox(t *testing.T, files string) {
	t.Helper()
	golden.Files(t, files, func(t *testing.T, text string) string {
		s := &scenario{t: t}
		return golden.Lines(t, text, "> ", func(args []string) ([]string, error) {
			s.lines = nil
			s.command(args)
			return s.lines, nil
		})
	})
}

type scenario struct {
	t      *testing.T
	o      *Outbox
	origin fault.Origin
	now    time.Duration
	wake   time.Time
	state  fault.State
	auto   []fault.Path
	dead   []string
	acks   []pendingAck
	period time.Duration
	next   time.Duration // digest
	lines  []string
	paths  bool // print them
	spool  bool // print the reports to keep and to forget
	reps   bool // supervisors answer REQ
	cut    []string
	kept   []Kept
	what   string
}

type pendingAck struct {
	at time.Duration
	ev Event
}

var epochStart = time.Unix(0, 0)

func (s *scenario) fatal(err error) {
	if err != nil {
		s.t.Helper()
		s.t.Fatal(err)
	}
}

func (s *scenario) command(f []string) {
	if f[0] == "new" {
		s.create(f[1:])
		return
	}
	at, err := time.ParseDuration(f[0])
	s.fatal(err)
	if f[1] == "stopped" {
		s.now, s.wake = at, time.Time{}
		return
	}
	s.runTo(at)
	switch verb, args := f[1], f[2:]; verb {
	case "run":
	case "supervisors":
		ev := Supervisors{Targets: strings.Split(args[0], ",")}
		if len(args) > 1 {
			ev.Leader = args[1]
		}
		s.step(ev)
	case "add", "digest":
		s.add(verb == "digest", args)
	case "received", "committed", "stale":
		s.ack(verb, args)
	case "up", "down":
		s.updown(verb, args)
	case "failed":
		s.step(PathFailed{Path: s.pathID(args[0]), Why: "ICMP"})
	case "damaged":
		ev := Damaged{Path: s.path(args[0])}
		if len(args) > 1 {
			id := s.pathID(args[1])
			ev.Interface, ev.Supervisor = id.Interface, id.Supervisor
		}
		s.step(ev)
	case "reply":
		n, err := strconv.Atoi(args[1])
		s.fatal(err)
		s.step(s.reply(s.pathID(args[0]), uint64(n)))
	case "kept":
		s.keep(args)
	case "restore":
		s.take(s.o.Restore(epochStart.Add(s.now), s.kept))
		s.kept = nil
	case "reps":
		s.reps = true
	case "cut":
		s.cut = args
	case "status":
		s.printf("%s", strings.Join(strings.Fields(prototext.MarshalOptions{}.Format(s.o.Status(epochStart.Add(s.now)))), " "))
	case "auto":
		s.auto = nil
		for _, a := range args {
			s.auto = append(s.auto, s.path(a))
		}
	case "dead":
		s.dead = args
	case "digests":
		s.period, err = time.ParseDuration(args[0])
		s.fatal(err)
		s.next = s.now
	case "stats":
		st := s.o.Stats()
		s.printf("pending %d received %d added %d answered %d committed %d sent %v retries %d shortened %d rtt %v timeout %v",
			st.Pending, st.Received, st.Added, st.Answered, st.Committed, st.Sent[1:], st.Retries, st.Shortened, st.RTT, st.Timeout)
	default:
		s.t.Fatalf("unknown command %q", verb)
	}
}

func (s *scenario) create(f []string) {
	s.origin = origin(f[0])
	var rails []fault.Path
	for r := range strings.SplitSeq(f[1], ",") {
		rails = append(rails, s.path(r))
	}
	cfg := DefaultOutboxConfig(rails...)
	s.paths, s.reps, s.spool, s.auto, s.dead, s.cut = false, false, false, nil, nil, nil
	s.acks, s.period, s.now, s.wake = nil, 0, 0, time.Time{}
	epoch := 1
	for _, kv := range f[2:] {
		k, v, _ := strings.Cut(kv, "=")
		n, err := strconv.Atoi(v)
		s.fatal(err)
		switch k {
		case "max":
			cfg.MaxReports = n
		case "paths":
			s.paths = n == 1
		case "epoch":
			epoch = n
		case "spool":
			s.spool = n == 1
		case "interfaces":
			cfg.Interfaces = nil
			for i := range n {
				cfg.Interfaces = append(cfg.Interfaces, fmt.Sprintf("if%d", i))
			}
		default:
			s.t.Fatalf("unknown field %q", k)
		}
	}
	o, err := NewOutbox(s.origin, fault.Epoch(epoch), cfg)
	s.fatal(err)
	s.o, s.state = o, fault.Unknown
}

func (s *scenario) path(name string) fault.Path {
	p, err := fault.ParsePath(strings.ToUpper(name))
	s.fatal(err)
	return p
}

func (s *scenario) add(digest bool, f []string) {
	r := fault.Report{Digest: digest}
	for i := 0; i+1 < len(f); i += 2 {
		c, err := fault.ParseComponent(f[i])
		s.fatal(err)
		st, err := fault.ParseState(f[i+1])
		s.fatal(err)
		r.Observations = append(r.Observations, fault.Observation{Component: c, State: st, Kind: fault.KindSelf})
	}
	_, out := s.o.Add(epochStart.Add(s.now), r)
	s.take(out)
}

func (s *scenario) ack(verb string, f []string) {
	a := &lofamov1.Ack{Node: string(s.origin.Node), Half: lofamov1.Half(s.origin.Half), Epoch: uint64(s.o.Epoch())}
	switch verb {
	case "received":
		a.Status = lofamov1.Ack_RECEIVED
	case "committed":
		a.Status = lofamov1.Ack_COMMITTED
	case "stale":
		a.Status = lofamov1.Ack_STALE_EPOCH
	}
	for n := range strings.SplitSeq(f[1], ",") {
		seq, err := strconv.Atoi(n)
		s.fatal(err)
		a.Seqs = append(a.Seqs, uint64(seq))
	}
	var by uint8
	for _, kv := range f[3:] {
		switch k, v, _ := strings.Cut(kv, "="); k {
		case "by":
			by = s.pathID(v + ">s0").Interface
		case "leader":
			a.Leader = v
		case "highest":
			n, err := strconv.Atoi(v)
			s.fatal(err)
			a.HighestEpoch = uint64(n)
		case "epoch":
			n, err := strconv.Atoi(v)
			s.fatal(err)
			a.Epoch = uint64(n)
		}
	}
	s.step(Acked{Ack: a, Supervisor: f[0], Path: s.path(f[2]), Interface: by})
}

func (s *scenario) runTo(end time.Duration) {
	for {
		at := end + 1
		var do func()
		consider := func(t time.Duration, f func()) {
			if t < at {
				at, do = t, f
			}
		}
		if len(s.acks) > 0 {
			consider(s.acks[0].at, func() {
				a := s.acks[0]
				s.acks = s.acks[1:]
				s.step(a.ev)
			})
		}
		if s.period > 0 {
			consider(s.next, func() {
				s.next += s.period
				s.add(true, []string{"host", "NORMAL"})
			})
		}
		if !s.wake.IsZero() {
			consider(s.wake.Sub(epochStart), func() { s.step(Tick{}) })
		}
		if do == nil {
			s.now = end
			return
		}
		s.now = at
		do()
	}
}

func (s *scenario) step(ev Event) { s.take(s.o.Step(epochStart.Add(s.now), ev)) }

func (s *scenario) take(out Output) {
	if out.NewEpoch != 0 {
		s.printf("new epoch %d", out.NewEpoch)
	}
	if out.Dropped != 0 {
		s.printf("left out %d", out.Dropped)
	}
	if out.DroppedWhat != s.what && out.Dropped > 0 {
		s.what = out.DroppedWhat
		s.printf("most of the log speaks of %s", s.what)
	}
	if s.spool {
		for _, r := range out.Keep {
			s.printf("keep %d:%d", r.ID.Epoch, r.ID.Seq)
		}
		for _, id := range out.Forget {
			s.printf("forget %d:%d", id.Epoch, id.Seq)
		}
	}
	for _, m := range out.Migrations {
		if s.paths {
			s.printf("%s by %s (%s)", m.State, cmp.Or(s.o.PathName(m.To), "no path"), m.Why)
		}
	}
	for _, m := range out.Paths {
		s.pathMessage(m)
	}
	for _, send := range out.Send {
		s.send(send)
	}
	if out.IsolatedChanged && s.paths {
		s.printf("isolated %t", out.Isolated)
	}
	if out.Changed {
		s.printf("service network %s → %s", s.state, out.ServiceNetwork)
	}
	s.state = out.ServiceNetwork
	s.wake = out.Wake
	if !out.Wake.IsZero() && out.Wake.Sub(epochStart) <= s.now {
		s.t.Fatalf("at %v: wake at %v is not in the future", s.now, out.Wake.Sub(epochStart))
	}
}

func (s *scenario) send(send Send) {
	head := fmt.Sprintf("%-6s ", send.Path)
	for _, r := range send.Reports {
		what := "report"
		if r.Digest {
			what = "digest"
		}
		var line strings.Builder
		fmt.Fprintf(&line, "%s%s #%d", head, what, r.ID.Seq)
		if r.ID.Epoch != s.o.Epoch() {
			fmt.Fprintf(&line, " of epoch %d", r.ID.Epoch)
		}
		if send.Target != "" {
			line.WriteString(" to " + s.name(PathID{send.Interface, send.Target}))
		}
		fmt.Fprintf(&line, " attempt %d", send.Attempt)
		if send.Session && s.paths {
			line.WriteString(" MAC")
		}
		if !r.Digest {
			for _, ob := range r.Observations {
				fmt.Fprintf(&line, " %s=%s age %v", ob.Component, ob.State, ob.Age)
				if ob.Detail != "" {
					fmt.Fprintf(&line, " %q", ob.Detail)
				}
			}
		}
		s.printf("%s", line.String())
		head = "     + "
	}
	if slices.Contains(s.auto, send.Path) {
		s.answer(send)
	}
}

// name writes a path; with one interface only the supervisor.
func (s *scenario) name(id PathID) string {
	if len(s.o.cfg.Interfaces) == 1 {
		return id.Supervisor
	}
	return s.o.PathName(id)
}

func (s *scenario) pathID(name string) PathID {
	i, sup, ok := strings.Cut(name, ">")
	if !ok {
		return PathID{0, name}
	}
	n := slices.Index(s.o.cfg.Interfaces, i)
	if n < 0 {
		s.t.Fatalf("no interface %q", i)
	}
	return PathID{uint8(n), sup}
}

func (s *scenario) updown(verb string, f []string) {
	p, i := s.path(f[0]), uint8(0)
	if len(f) > 1 {
		i = s.pathID(f[1] + ">s0").Interface
	}
	if verb == "up" {
		s.step(RailUp{Path: p, Interface: i})
	} else {
		s.step(RailDown{Path: p, Interface: i, Why: "no carrier"})
	}
}

func (s *scenario) keep(f []string) {
	age, err := time.ParseDuration(f[0])
	s.fatal(err)
	c, err := fault.ParseComponent(f[2])
	s.fatal(err)
	r := fault.Report{ID: fault.ReportID{Origin: s.origin},
		Observations: []fault.Observation{{Node: s.origin.Node, Component: c, State: fault.Sick, Kind: fault.KindSelf}}}
	_, err = fmt.Sscanf(f[1], "%d:%d", &r.ID.Epoch, &r.ID.Seq)
	s.fatal(err)
	s.kept = append(s.kept, Kept{r, age})
}

func (s *scenario) reply(id PathID, n uint64) Replied {
	return Replied{Interface: id.Interface, Supervisor: id.Supervisor, Reply: &lofamov1.PathReply{
		Node: string(s.origin.Node), Half: lofamov1.Half(s.origin.Half), Epoch: uint64(s.o.Epoch()), Id: n,
		Checksum: lofamov1.Checksum_CHECKSUM_CRC32C}}
}

func (s *scenario) pathMessage(m PathMessage) {
	if m.Ack != nil {
		if s.paths {
			s.printf("ACK    %d to %s", m.Ack.GetId(), s.name(m.Path))
		}
		return
	}
	what := ""
	if m.Request.GetAlternate() {
		what = " alternate"
	}
	if s.paths {
		s.printf("REQ    %d to %s%s", m.Request.GetId(), s.name(m.Path), what)
	}
	if (s.reps || slices.Contains(s.auto, fault.PathDirect)) && !s.unreachable(m.Path) {
		s.after(1, s.reply(m.Path, m.Request.GetId()))
	}
}

func (s *scenario) unreachable(id PathID) bool {
	return slices.Contains(s.dead, id.Supervisor) || slices.Contains(s.dead, s.o.PathName(id)) ||
		slices.Contains(s.cut, s.o.cfg.Interfaces[id.Interface])
}

func (s *scenario) after(ms int, ev Event) {
	s.acks = append(s.acks, pendingAck{s.now + time.Duration(ms)*time.Millisecond, ev})
	slices.SortStableFunc(s.acks, func(a, b pendingAck) int { return int(a.at - b.at) })
}

func (s *scenario) answer(send Send) {
	who := send.Target
	if who == "" {
		who = "s0"
	}
	if slices.Contains(s.dead, who) || send.Path == fault.PathDirect && s.unreachable(PathID{send.Interface, who}) {
		return
	}
	ids := map[bool][]fault.ReportID{}
	for _, r := range send.Reports {
		ids[r.Digest] = append(ids[r.Digest], r.ID)
	}
	for _, digest := range []bool{true, false} {
		for _, ack := range NewAcks(lofamov1.Ack_RECEIVED, ids[digest]...) {
			s.after(1, Acked{Ack: ack, Supervisor: who, Path: send.Path, Interface: send.Interface})
		}
	}
	for _, ack := range NewAcks(lofamov1.Ack_COMMITTED, ids[false]...) {
		s.after(2, Acked{Ack: ack, Supervisor: who, Path: send.Path, Interface: send.Interface})
	}
}

func (s *scenario) printf(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf("%-8v %s", s.now, fmt.Sprintf(format, args...)))
}
