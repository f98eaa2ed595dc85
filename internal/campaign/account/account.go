// Package account does the campaigns' accounting. From the debug logs of halves and supervisors it finds which reports
// were kept, taken and committed, across all restarts and terms of leadership. It only reads logs and makes no
// judgement.
package account

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Audit collects the supervisors' log entries about reports, over all terms.
type Audit struct {
	terms map[int64]*term
	// Refusals counts refused packets by class, and Damaged counts damaged ones.
	Refusals map[string]int
	Damaged  int
}

// term is one term of leadership.
type term struct {
	positions []servicenet.InboxPosition // at its beginning
	taken     []taking
	committed map[string]bool // by id
}

type taking struct{ id, content string }

// line holds the relevant fields of a log line.
type line struct {
	Msg      string
	Term     int64
	Report   string
	Content  text
	Reports  []string
	Position servicenet.InboxPosition
	Class    string
}

// text is a string. Messages that do not matter here may have a field of that name with a value of another type, which is ignored.
type text string

// UnmarshalJSON implements json.Unmarshaler.
func (t *text) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		*t = text(s)
	}
	return nil
}

// NewAudit returns an empty audit.
func NewAudit() *Audit { return &Audit{terms: map[int64]*term{}, Refusals: map[string]int{}} }

// Read adds the log of a supervisor. The last line of a killed process may be cut off.
func (a *Audit) Read(path string) error { return readLines(path, false, a.take) }

// readLines reads a JSON log line by line. A half that panics writes lines in another format, and a killed one leaves a
// cut line before those of its next run; foreign skips such lines.
func readLines(path string, foreign bool, take func(line)) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	var garbled error
	for n := 1; lines.Scan(); n++ {
		if garbled != nil {
			return garbled
		}
		var l line
		err := json.Unmarshal(lines.Bytes(), &l)
		if err != nil && foreign {
			continue
		}
		if err != nil {
			garbled = fmt.Errorf("log %s, line %d: %w: %.200s", path, n, err, lines.Text())
			continue
		}
		take(l)
	}
	return lines.Err()
}

func (a *Audit) take(l line) {
	switch l.Msg {
	case "refused":
		a.Refusals[l.Class]++
		return
	case "damaged":
		a.Damaged++
		return
	}
	switch l.Msg {
	case engine.TraceTerm:
		a.term(l)
	case engine.TracePosition:
		t := a.term(l)
		t.positions = append(t.positions, l.Position)
	case engine.TraceTaken:
		t := a.term(l)
		t.taken = append(t.taken, taking{l.Report, string(l.Content)})
	case engine.TraceCommitted:
		t := a.term(l)
		for _, id := range l.Reports {
			t.committed[id] = true
		}
	}
}

// term returns the term of a line. Other lines name terms too, including those that ended before the store's positions
// were read: such a term does not know earlier commits.
func (a *Audit) term(l line) *term {
	t := a.terms[l.Term]
	if t == nil {
		t = &term{committed: map[string]bool{}}
		a.terms[l.Term] = t
	}
	return t
}

// Terms returns the number of terms of leadership.
func (a *Audit) Terms() int { return len(a.terms) }

// Accepted returns the contents with which every ID was accepted. A report taken in a term counts if its commit was
// logged, or if the next term began with a position that contains it: then the replica was killed between the commit
// and the log entry.
func (a *Audit) Accepted() map[string][]string {
	var order []int64
	for n := range a.terms {
		order = append(order, n)
	}
	slices.Sort(order)
	out := make(map[string][]string)
	for i, n := range order {
		t := a.terms[n]
		var next inbox
		if i+1 < len(order) {
			next = inboxOf(a.terms[order[i+1]].positions)
		}
		for _, x := range t.taken {
			if t.committed[x.id] || next.knows(x.id) {
				out[x.id] = append(out[x.id], x.content)
			}
		}
	}
	return out
}

// inbox is the set of IDs covered by some positions. It is deliberately naive.
type inbox map[string]bool

func inboxOf(positions []servicenet.InboxPosition) inbox {
	out := inbox{}
	for _, p := range positions {
		windows := append([]servicenet.InboxWindow{{Highest: p.Highest, Window: p.Window}}, p.Earlier[:]...)
		for down, w := range windows {
			for i := range uint64(servicenet.WindowBits) {
				if uint64(w.Highest) > i && w.Window[i/64]>>(i%64)&1 == 1 {
					out[fmt.Sprintf("%s@%d#%d", p.Origin, uint64(p.Epoch)-uint64(down), uint64(w.Highest)-i)] = true
				}
			}
		}
	}
	return out
}

func (i inbox) knows(id string) bool { return i[id] }
