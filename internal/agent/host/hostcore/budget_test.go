package hostcore

import (
	"maps"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
)

// counted is a host half with counters of its work.
type counted struct {
	m                                                *Machine
	now                                              time.Time
	spent                                            time.Duration
	writes, takes, digests, probes, answers, unknown int
	notes                                            map[NoteKind]int

	// The reader of sensors, which notices a new level at its next tick. Its answers take some time.
	period  time.Duration
	sensors int
	script  time.Duration
	sensed  time.Time
	due     time.Time // of the answer; zero: none is due
}

func newCounted(t *testing.T, preset string) *counted {
	t.Helper()
	p, err := config.Preset(preset)
	if err != nil {
		t.Fatal(err)
	}
	w := &counted{now: start, period: p.SensorPeriod, sensors: 1, sensed: start, notes: map[NoteKind]int{}}
	w.m, err = New(Config{
		Topo: halfcore.NewTopology("n0-0-0", grid.Coord{}, grid.Dims{X: 2, Y: 1, Z: 1}, nil), Periods: p, MaxHops: 9, Budget: 10,
		Rails: []fault.Path{fault.PathDirect, fault.PathTorus}, Interfaces: []string{"service"}, SelfTest: testing2s,
	}, w.now, 7)
	if err != nil {
		t.Fatal(err)
	}
	w.step(Supervisors{Targets: []string{"sup-0"}})
	w.step(Spent{})
	w.step(Readings{[]Reading{{Component: fault.ComponentMemory, State: fault.Normal}}})
	return w
}

func (w *counted) step(ev Event) {
	out := w.m.Step(w.now, ev)
	for _, n := range out.Notes {
		w.notes[n.Kind]++
	}
	if out.WriteHost {
		w.writes++
	}
	for _, p := range out.Probes {
		w.probes++
		w.step(Test{selftest.Returned{Module: p.Module, Data: p.Data, Took: time.Millisecond}})
	}
	for i := range out.Send {
		if out.Send[i].Answer != nil {
			w.answers++
		}
		for _, r := range out.Send[i].Reports {
			if r.Digest {
				w.digests++
			}
			for _, o := range r.Observations {
				if o.Component == fault.ComponentMemory && o.State == fault.Unknown {
					w.unknown++
				}
			}
			w.step(Received{Path: fault.PathDirect, Opened: servicenet.Opened{
				Role: servicenet.RoleSupervisor, Name: "sup-0", Msg: &lofamov1.Message{Acks: servicenet.NewAcks(lofamov1.Ack_COMMITTED, r.ID)},
			}})
		}
	}
	if out.TakeDNP {
		w.takes++
		w.step(Registers{Taken: true, Sample: watchdog.Sample{Valid: true}, DNP: watchdog.DNPWord{Valid: true}})
	}
}

// run lets the half run for some seconds, in which it uses a share of a core. The sensors answer as often as they are
// read, and each second brings a challenge.
func (w *counted) run(seconds int, share float64) {
	from := w.now
	for tick := range seconds * 40 {
		w.now = from.Add(time.Duration(tick+1) * 25 * time.Millisecond)
		w.step(Tick{})
		if w.now.Sub(w.sensed) >= w.period*time.Duration(w.sensors) {
			w.sensed, w.sensors, w.due = w.now, w.m.Budget().Level().Sensors(), w.now.Add(w.script)
		}
		if !w.due.IsZero() && !w.now.Before(w.due) {
			w.due = time.Time{}
			w.step(Readings{[]Reading{{Component: fault.ComponentMemory, State: fault.Normal}}})
		}
		if tick%40 == 39 {
			w.spent += time.Duration(share * float64(time.Second))
			w.step(Spent{Total: w.spent})
			w.step(Received{Path: fault.PathDirect, Opened: servicenet.Opened{Role: servicenet.RoleSupervisor, Name: "sup-0",
				Msg: &lofamov1.Message{Body: &lofamov1.Message_Challenge{Challenge: &lofamov1.Challenge{
					Nonce: []byte("0123456789abcdef"), Node: "n0-0-0", Half: lofamov1.Half_HALF_HOST, ReplyTo: "192.0.2.1:7",
				}}}}})
		}
	}
}

// TestHalfOverBudgetKeepsItsWatchdog: at level 3, digests and probes are rarer. The half writes its word, reads the
// other's and answers challenges as often as before, and no sensor becomes UNKNOWN. Each change of the level is one note.
func TestHalfOverBudgetKeepsItsWatchdog(t *testing.T) {
	for _, preset := range []string{config.PresetDefault, config.PresetRelaxed} {
		t.Run(preset, func(t *testing.T) { testHalfOverBudget(t, preset) })
	}
}

func testHalfOverBudget(t *testing.T, preset string) {
	quiet, busy := newCounted(t, preset), newCounted(t, preset)
	quiet.run(10, 0.02)
	busy.run(10, 0.9)
	if l := busy.m.Budget().Level(); l != halfcore.BudgetSensors {
		t.Fatalf("level %d after 10 s at 90 %% of a core: want 3", l)
	}
	before := map[*counted]counted{quiet: *quiet, busy: *busy}
	quiet.run(60, 0.02)
	busy.run(60, 0.9)
	count := func(w *counted, of func(counted) int) int { return of(*w) - of(before[w]) }
	for name, of := range map[string]func(counted) int{
		"writes of the own word":      func(w counted) int { return w.writes },
		"reads of the other's word":   func(w counted) int { return w.takes },
		"answers to challenges":       func(w counted) int { return w.answers },
		"sensors that became UNKNOWN": func(w counted) int { return w.unknown },
	} {
		if a, b := count(quiet, of), count(busy, of); a != b || a == 0 && name != "sensors that became UNKNOWN" {
			t.Errorf("%s: %d within the budget, %d over it: want equal numbers", name, a, b)
		}
	}
	digests := func(w counted) int { return w.digests }
	probes := func(w counted) int { return w.probes }
	if a, b := count(quiet, digests), count(busy, digests); b < a/2 || b > a*9/10 {
		t.Errorf("%d digests within the budget, %d over it: want about four fifths", a, b)
	}
	if a, b := count(quiet, probes), count(busy, probes); b == 0 || b > a/3 {
		t.Errorf("%d probes within the budget, %d over it: want about a quarter", a, b)
	}
	if p := busy.m.ProcessorTime(); p.GetBudgetLevel() != 3 || quiet.m.ProcessorTime() != nil {
		t.Errorf("status %v and %v: want level 3, and none", p, quiet.m.ProcessorTime())
	}
	busy.run(60, 0.02)
	if l := busy.m.Budget().Level(); l != halfcore.BudgetKept || busy.unknown > 0 {
		t.Errorf("level %d after a minute of little use, %d times UNKNOWN: want 0 and never", l, busy.unknown)
	}
	want := map[NoteKind]int{NoteOverBudget: 3, NoteBudgetEased: 3}
	maps.DeleteFunc(busy.notes, func(k NoteKind, _ int) bool { return k != NoteOverBudget && k != NoteBudgetEased })
	if !maps.Equal(busy.notes, want) {
		t.Errorf("notes %v: want three up and three down", busy.notes)
	}
}

// TestSensorsStayKnownWhenBudgetEases: when level 3 ends, the next reading may be due only after its long period, and a
// slow sensor answers later still.
func TestSensorsStayKnownWhenBudgetEases(t *testing.T) {
	for _, preset := range config.PresetNames() {
		for phase := range 8 {
			w := newCounted(t, preset)
			w.script = w.period / 2
			w.run(10, 0.9)
			w.run(20+phase, 0.9)
			w.run(120, 0.02)
			if l := w.m.Budget().Level(); l != halfcore.BudgetKept || w.unknown > 0 || w.notes[NoteSensorStale] > 0 {
				t.Errorf("preset %s, %d s after the others: level %d, %d times UNKNOWN: want 0 and never", preset, phase, l, w.unknown)
			}
		}
	}
}
