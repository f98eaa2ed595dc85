package servicenet

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/golden"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestOutboxScenarios plays testdata/outbox/*.txt. A line that begins with '>' is what the outbox
// must answer to the command before it; '#' begins a comment. Times are since the start. Commands:
//
//	new ORIGIN RAILS [field=value...]       first line: rails as direct,gossip,torus
//	TIME supervisors ID,ID,... [LEADER]
//	TIME add COMPONENT STATE [COMPONENT STATE ...]    TIME digest (as add)
//	TIME received|committed|stale SUPERVISOR SEQ,SEQ PATH [leader=ID] [highest=EPOCH] [epoch=EPOCH]
//	TIME up|down PATH
//	TIME auto [PATH...]    from now on supervisors answer both acks 1 ms after what comes by these
//	TIME digests PERIOD    from now on a digest every period (0: no more)
//	TIME dead [ID...]      from now on these supervisors do not
//	TIME stopped           the half was stopped until now: it missed its wakes
//	TIME run               only lets the time pass
//	TIME stats
//
// Between commands the outbox is stepped at each Wake that it asked for.
func TestOutboxScenarios(t *testing.T) {
	golden.Files(t, "testdata/outbox/*.txt", func(t *testing.T, text string) string {
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
}

type pendingAck struct {
	at   time.Duration
	path fault.Path
	ack  *lofamov1.Ack
	who  string
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
	case "up":
		s.step(RailUp{Path: s.path(args[0])})
	case "down":
		s.step(RailDown{Path: s.path(args[0])})
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
	for _, kv := range f[2:] {
		k, v, _ := strings.Cut(kv, "=")
		n, err := strconv.Atoi(v)
		s.fatal(err)
		switch k {
		case "max":
			cfg.MaxReports = n
		default:
			s.t.Fatalf("unknown field %q", k)
		}
	}
	o, err := NewOutbox(s.origin, 1, cfg)
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
	for _, kv := range f[3:] {
		switch k, v, _ := strings.Cut(kv, "="); k {
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
	s.step(Acked{Ack: a, Supervisor: f[0], Path: s.path(f[2])})
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
				s.step(Acked{Ack: a.ack, Supervisor: a.who, Path: a.path})
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
	for _, send := range out.Send {
		r := send.Reports[0]
		what := "report"
		if r.Digest {
			what = "digest"
		}
		var line strings.Builder
		fmt.Fprintf(&line, "%-6s %s #%d", send.Path, what, r.ID.Seq)
		if send.Target != "" {
			line.WriteString(" to " + send.Target)
		}
		fmt.Fprintf(&line, " attempt %d", send.Attempt)
		if !r.Digest {
			for _, ob := range r.Observations {
				fmt.Fprintf(&line, " %s=%s age %v", ob.Component, ob.State, ob.Age)
				if ob.Detail != "" {
					fmt.Fprintf(&line, " %q", ob.Detail)
				}
			}
		}
		s.printf("%s", line.String())
		if slices.Contains(s.auto, send.Path) {
			s.answer(send)
		}
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

func (s *scenario) answer(send Send) {
	who := send.Target
	if who == "" {
		who = "s0"
	}
	if slices.Contains(s.dead, who) {
		return
	}
	statuses := []lofamov1.Ack_Status{lofamov1.Ack_RECEIVED, lofamov1.Ack_COMMITTED}
	if send.Reports[0].Digest {
		statuses = statuses[:1]
	}
	for i, st := range statuses {
		s.acks = append(s.acks, pendingAck{s.now + time.Duration(i+1)*time.Millisecond, send.Path,
			NewAcks(st, send.Reports[0].ID)[0], who})
	}
	slices.SortStableFunc(s.acks, func(a, b pendingAck) int { return int(a.at - b.at) })
}

func (s *scenario) printf(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf("%-8v %s", s.now, fmt.Sprintf(format, args...)))
}
