// Package account is the accounting of the campaigns: what the logs of halves and supervisors say, at debug level, of
// which reports were kept, taken and committed, over all restarts and terms of leadership. It reads logs alone,
// asks nobody and judges nothing.
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

// Audit is what the supervisors' logs say of reports, over all terms.
type Audit struct {
	terms map[int64]*term
	// Refusals are packets refused, by class; Damaged those that came damaged.
	Refusals map[string]int
	Damaged  int
}

// term is one term of leadership.
type term struct {
	positions []servicenet.InboxPosition // when it began
	taken     []taking
	committed map[string]bool // by id
}

type taking struct{ id, content string }

// line is a line of a log, as far as it is wanted.
type line struct {
	Msg      string
	Term     int64
	Report   string
	Content  string
	Reports  []string
	Position servicenet.InboxPosition
	Class    string
}

// NewAudit returns one that knows of nothing.
func NewAudit() *Audit { return &Audit{terms: map[int64]*term{}, Refusals: map[string]int{}} }

// Read takes the log of a supervisor in. The last line of a process that was killed may be cut off.
func (a *Audit) Read(path string) error { return readLines(path, false, a.take) }

// readLines reads a log in JSON, line by line. A half that panics says why in lines of another form, and one that was
// killed leaves a line cut off before those of its next life: foreign lets such lines be.
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
		t.taken = append(t.taken, taking{l.Report, l.Content})
	case engine.TraceCommitted:
		t := a.term(l)
		for _, id := range l.Reports {
			t.committed[id] = true
		}
	}
}

// term is the term that a line is of. Other lines name terms too, also those that ended before the store's positions were read:
// such a term knows nothing of what was committed before it.
func (a *Audit) term(l line) *term {
	t := a.terms[l.Term]
	if t == nil {
		t = &term{committed: map[string]bool{}}
		a.terms[l.Term] = t
	}
	return t
}

// Terms returns how many terms of leadership there were.
func (a *Audit) Terms() int { return len(a.terms) }

// Accepted returns the contents with which every id was accepted. What was taken in a term counts when
// its commit was told, or when the next term began with a position that knows it: then it was committed,
// and the replica killed before it told.
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

// inbox says which ids some positions know. It is deliberately naive.
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
