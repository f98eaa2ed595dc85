package watchdog

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/golden"
)

// TestScenarios runs the scenarios of testdata: a writer and a reader of one word, in virtual time.
// A scenario is a list of commands, each on a line. The output of a run follows it, between
// "----" and an empty line.
//
//	periods twrite=25ms tread=50ms misses=1 grace=400ms
//	writer start | kill | stop | continue      kill and start: a new machine; stop: SIGSTOP
//	reader start | kill | stop | continue
//	writer starved | fed                       starved: it is stopped, and the kernel says that it waits for a processor
//	word valid | invalid | corrupt | whole     from outside
//	process ended                              the reader learns that the writer's process has ended
//	run DURATION                               and print the events
//
// If both are due at one time, the writer goes first.
func TestScenarios(t *testing.T) {
	golden.Files(t, "testdata/*.txt", func(t *testing.T, text string) string {
		w := &world{}
		return golden.Blocks(t, text, "----", func(args []string) ([]string, error) {
			w.log = nil
			err := w.command(args)
			return w.log, err
		})
	})
}

// world is one word with its two machines.
type world struct {
	now            time.Duration
	writerConfig   WriterConfig
	readerConfig   ReaderConfig
	writer         *Writer
	reader         *Reader
	wWake, rWake   time.Duration
	wStop, rStop   bool
	starved        bool
	valid, corrupt bool
	log            []string
}

func (w *world) command(f []string) error {
	if len(f) < 2 {
		return fmt.Errorf("want a command and its arguments")
	}
	switch f[0] {
	case "periods":
		return w.periods(f[1:])
	case "writer":
		if f[1] == "starved" || f[1] == "fed" {
			w.starved, w.wStop = f[1] == "starved", f[1] == "starved"
			return nil
		}
		return w.process(f[1], &w.wStop, func() { w.writer, w.wWake = NewWriter(w.writerConfig), w.now }, func() { w.writer = nil })
	case "reader":
		return w.process(f[1], &w.rStop, func() { w.reader, w.rWake = NewReader(w.readerConfig, at(w.now)), w.now }, func() { w.reader = nil })
	case "word":
		switch f[1] {
		case "valid", "invalid":
			w.valid = f[1] == "valid"
		case "corrupt", "whole":
			w.corrupt = f[1] == "corrupt"
		default:
			return fmt.Errorf("unknown state of the word")
		}
		return nil
	case "process":
		if f[1] != "ended" || w.reader == nil {
			return fmt.Errorf("want: process ended, and a reader")
		}
		out := w.reader.Ended(at(w.now))
		w.print(fmt.Sprintf("  process ended  %s, age %v", out.Verdict, out.Age))
		return nil
	case "run":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			return err
		}
		w.run(w.now + d)
		return nil
	}
	return fmt.Errorf("unknown command")
}

func (w *world) periods(args []string) error {
	for _, a := range args {
		k, v, _ := strings.Cut(a, "=")
		var err error
		switch k {
		case "twrite":
			w.writerConfig.TWrite, err = time.ParseDuration(v)
		case "tread":
			w.readerConfig.TRead, err = time.ParseDuration(v)
		case "grace":
			w.readerConfig.Grace, err = time.ParseDuration(v)
		case "misses":
			_, err = fmt.Sscan(v, &w.readerConfig.Misses)
		default:
			err = fmt.Errorf("unknown period %q", k)
		}
		if err != nil {
			return err
		}
	}
	return CheckPeriods(w.writerConfig.TWrite, w.readerConfig.TRead)
}

func (w *world) process(what string, stopped *bool, start, kill func()) error {
	switch what {
	case "start":
		*stopped = false
		start()
	case "kill":
		kill()
	case "stop", "continue":
		*stopped = what == "stop"
	default:
		return fmt.Errorf("unknown verb")
	}
	return nil
}

// run moves from wake-up to wake-up until end, which is excluded.
func (w *world) run(end time.Duration) {
	for {
		wDue, rDue := end, end
		if w.writer != nil && !w.wStop {
			wDue = max(w.wWake, w.now) // a stopped process wakes as soon as it continues
		}
		if w.reader != nil && !w.rStop {
			rDue = max(w.rWake, w.now)
		}
		if min(wDue, rDue) >= end {
			w.now = end
			return
		}
		if wDue <= rDue {
			w.now = wDue
			w.stepWriter()
		} else {
			w.now = rDue
			w.stepReader()
		}
	}
}

func (w *world) stepWriter() {
	due, wake := w.writer.Step(at(w.now))
	w.wWake = since(wake)
	if due {
		w.valid, w.corrupt = true, false
		w.print("write")
	}
}

func (w *world) stepReader() {
	out := w.reader.Step(at(w.now), func() Sample {
		s := Sample{Valid: w.valid && !w.corrupt, Corrupt: w.corrupt}
		s.Starved = w.starved && !s.Valid
		if !w.corrupt {
			w.valid = false
		}
		switch {
		case s.Corrupt:
			w.print("  read corrupt")
		case s.Valid:
			w.print("  read valid")
		case s.Starved:
			w.print("  read empty, owner starved")
		default:
			w.print("  read empty")
		}
		return s
	})
	w.rWake = since(out.Wake)
	line := "  " + out.Verdict.String()
	if out.Changed {
		line += " (changed)"
	}
	line += fmt.Sprintf(", misses %d, age %v", out.Misses, out.Age)
	if out.Late {
		line += ", late"
	}
	w.log[len(w.log)-1] += line
}

func (w *world) print(s string) {
	w.log = append(w.log, fmt.Sprintf("%5dms %s", w.now.Milliseconds(), s))
}

func at(d time.Duration) time.Time    { return time.Time{}.Add(d + time.Hour) }
func since(t time.Time) time.Duration { return t.Sub(time.Time{}) - time.Hour }
