package procedure

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/golden"
)

// A scenario is a list of commands, each followed by the node's reactions, one line each, beginning with "  ".
//
//	node RANK                 a new node, that knows of no procedure; its plan: Network Delay 100 ms, hop 10 ms, drain time-out 1 s;
//	                          limits: drop 100 ms, diagnose 500 ms, rest 10 s, two procedures of a starter an hour
//	start RUN [OPTION ...]    a cause here
//	hear FROM WAVE/STARTER/RUN STATE [OPTION ...]    another node's broadcast
//	holds N                   messages
//	complete SET [ROUND]      all members are in that set of the procedure under way
//	run DURATION              time passes
//
// Options: diagnose, holding, clear, round N, order TERM/COUNT (verified), drain DURATION.
func TestScenarios(t *testing.T) {
	golden.Files(t, "testdata/*.txt", func(t *testing.T, text string) string {
		var w *alone
		return golden.Lines(t, text, "  ", func(args []string) ([]string, error) {
			if args[0] == "node" {
				rank, err := strconv.Atoi(args[1])
				w = &alone{m: New(rank, limits()), now: begin}
				return nil, err
			}
			err := w.do(args)
			deeds := w.deeds
			w.deeds = nil
			return deeds, err
		})
	})
}

// alone is one node, of which the others are the script's.
type alone struct {
	m     *Machine
	now   time.Time
	wake  time.Time
	deeds []string
}

func (w *alone) say(format string, args ...any) {
	w.deeds = append(w.deeds, fmt.Sprintf("%7s ", w.now.Sub(begin))+fmt.Sprintf(format, args...))
}

func (w *alone) do(args []string) error {
	switch args[0] {
	case "run":
		d, err := time.ParseDuration(args[1])
		if err != nil {
			return err
		}
		for end := w.now.Add(d); ; {
			if w.wake.IsZero() || w.wake.After(end) {
				w.now = end
				return nil
			}
			w.now = w.wake
			w.step(Tick{})
		}
	case "start":
		run, err := strconv.ParseUint(args[1], 10, 64)
		msg, err2 := options(args[2:])
		if err != nil || err2 != nil {
			return fmt.Errorf("%w %w", err, err2)
		}
		w.step(Start{Run: run, Order: msg.Order, Plan: msg.Plan, Diagnose: msg.Diagnose})
	case "hear":
		return w.hear(args)
	case "holds":
		n, err := strconv.Atoi(args[1])
		w.step(Holds{n})
		return err
	case "complete":
		c := Complete{Key: w.m.Key()}
		for s := Joined; s <= Stuck; s++ {
			if s.String() == args[1] {
				c.Set = s
			}
		}
		if len(args) > 2 {
			n, err := strconv.Atoi(args[2])
			if err != nil {
				return err
			}
			c.Round = uint32(n)
		}
		w.step(c)
	default:
		return fmt.Errorf("no command %q", args[0])
	}
	return nil
}

func (w *alone) hear(args []string) error {
	msg, err := options(args[4:])
	if err != nil {
		return err
	}
	from, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	if _, err := fmt.Sscanf(args[2], "%d/%d/%d", &msg.Wave, &msg.Starter, &msg.Run); err != nil {
		return err
	}
	for s := Normal; s <= Diagnostics; s++ {
		if s.String() == args[3] {
			msg.State = s
		}
	}
	w.step(Heard{From: from, Message: msg, Ordered: msg.Order != Order{}})
	return nil
}

func options(args []string) (Message, error) {
	m := Message{Plan: Plan{Delay: 100 * ms, Hop: 10 * ms, DrainTimeout: time.Second}}
	for i := 0; i < len(args); i++ {
		var err error
		switch args[i] {
		case "diagnose":
			m.Diagnose = true
		case "holding":
			m.Holding = true
		case "clear":
			m.Clear = true
		case "round":
			i++
			_, err = fmt.Sscan(args[i], &m.Round)
		case "order":
			i++
			_, err = fmt.Sscanf(args[i], "%d/%d", &m.Order.Term, &m.Order.Count)
		case "drain":
			i++
			m.Plan.DrainTimeout, err = time.ParseDuration(args[i])
		default:
			err = fmt.Errorf("no option %q", args[i])
		}
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

func (w *alone) step(ev Event) {
	out := w.m.Step(w.now, ev)
	w.wake = out.Wake
	for i := range out.Broadcast {
		msg := &out.Broadcast[i]
		words := []string{fmt.Sprintf("says of %d/%d/%d: %s", msg.Wave, msg.Starter, msg.Run, msg.State)}
		if msg.Round > 0 {
			words = append(words, fmt.Sprintf("round %d", msg.Round))
		}
		for _, f := range []struct {
			set  bool
			name string
		}{{msg.Holding, "holding"}, {msg.Clear, "clear"}, {msg.Diagnose, "diagnose"}} {
			if f.set {
				words = append(words, f.name)
			}
		}
		w.say("%s", strings.Join(words, " "))
	}
	for _, a := range out.Arrive {
		w.say("is in %s %d", a.Set, a.Round)
	}
	if out.Changed {
		w.say("%s of %d/%d/%d", w.m.State(), w.m.Key().Wave, w.m.Key().Starter, w.m.Key().Run)
	}
	if out.Diagnose {
		w.say("tests its links")
	}
	if out.MayMask {
		w.say("may change its mask")
	}
	if out.Refused != "" {
		w.say("refuses: %s", out.Refused)
	}
	if r := out.Ended; r != nil {
		var steps []string
		for _, s := range r.Steps {
			steps = append(steps, fmt.Sprintf("%s %s held %d", s.State, s.Took, s.Held))
		}
		w.say("ends: clear %t, tested %t, held %d, timed out %t, %d rounds; %s", r.Clear, r.Diagnose, r.Held, r.TimedOut, r.Rounds,
			strings.Join(steps, ", "))
	}
}
