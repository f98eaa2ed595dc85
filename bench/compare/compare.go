// Package compare holds the results of lofamo-compare and prints docs/compare.md from them. It is pure: it starts no
// process, reads no clock and opens no file. Start reading at Run.
package compare

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Run is everything that docs/compare.md prints. lofamo-compare writes it as JSON beside the page, so that a test can
// print the page again and refuse any other text. The whole comparison takes hours, so it is measured in pieces: a later
// piece keeps the cells that it does not measure again.
type Run struct {
	Short     bool     `json:"short,omitempty"`
	Pieces    []Piece  `json:"pieces"` // by age; the last is the current one
	Systems   []System `json:"systems"`
	Cells     []Cell   `json:"cells"`
	LeftOut   []string `json:"leftOut,omitempty"` // systems that the last piece could not run, with the reasons
	Namespace string   `json:"namespace"`         // how loss and isolation were made
}

// Piece is one run of lofamo-compare with the conditions of its cells.
type Piece struct {
	Commit   string        `json:"commit"`
	Lanes    string        `json:"lanes"` // which systems ran at the same time
	Seed     uint64        `json:"seed"`
	Begun    time.Time     `json:"begun"`
	Took     time.Duration `json:"took"`
	Machine  string        `json:"machine"`
	LoadFrom string        `json:"loadFrom"` // load averages of the machine when the piece began
	LoadTo   string        `json:"loadTo"`   // and when it ended
	Beside   string        `json:"beside"`   // other work on the machine, as the caller states it
	Kills    int           `json:"kills"`    // asked of each cell
	Limit    time.Duration `json:"limit"`    // a system that needs longer for a kill has missed it
	Steady   time.Duration `json:"steady"`   // time without kills over which costs are measured
}

// System is one of the compared systems.
type System struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	Settings string `json:"settings"`
	Observer string `json:"observer"` // how a member learns of a death
	Members  string `json:"members"`  // the processes of a member, and the processes beside the members
}

// Load is the adverse condition of a cell.
type Load struct {
	Loops int `json:"loops"` // busy loops at normal priority
	Loss  int `json:"loss"`  // packets lost, in percent
}

// String names the load.
func (l Load) String() string {
	switch {
	case l.Loss > 0 && l.Loops > 0:
		return fmt.Sprintf("%d loops, %d %% loss", l.Loops, l.Loss)
	case l.Loss > 0:
		return fmt.Sprintf("%d %% loss", l.Loss)
	}
	return fmt.Sprintf("%d loops", l.Loops)
}

// Condition is one size under one load.
type Condition struct {
	Members int
	Load    Load
}

// String names the condition.
func (c Condition) String() string { return fmt.Sprintf("%d members, %s", c.Members, c.Load) }

// Plan returns the conditions of the whole comparison, in order.
func Plan() (out []Condition) {
	for _, members := range []int{8, 27, 64} {
		for _, l := range []Load{{}, {Loops: 4}, {Loops: 16}, {Loss: 20}} {
			out = append(out, Condition{members, l})
		}
	}
	return out
}

// Cell holds the results of one system at one size under one load.
type Cell struct {
	System  string `json:"system"`
	Members int    `json:"members"`
	Load    Load   `json:"load"`
	Piece   int    `json:"piece"`   // index of the piece that measured it
	Version string `json:"version"` // of the system at that time

	Kills    []Kill        `json:"kills"`
	False    int           `json:"false"`    // deaths declared of living members
	Observed time.Duration `json:"observed"` // time in which False was counted
	CPU      float64       `json:"cpu"`      // share of a core of all processes, 1 is a whole core
	Bytes    float64       `json:"bytes"`    // sent per member and second
	Memory   float64       `json:"memory"`   // bytes resident per member
	Failure  string        `json:"failure,omitempty"`
	Note     string        `json:"note,omitempty"`
}

// Kill is one killed member. Times count from just before the signal.
type Kill struct {
	Member int           `json:"member"`
	First  time.Duration `json:"first"` // until the first surviving observer knew; Missed: within the limit none did
	All    time.Duration `json:"all"`   // until the last surviving observer knew; Missed: within the limit not all did
}

// Missed marks a time that exceeded the limit.
const Missed time.Duration = -1

// times returns the times in milliseconds. A missed one is infinite: all that is known is that it exceeds the limit.
func times(kills []Kill, which func(Kill) time.Duration) (ms []float64, missed int) {
	for _, k := range kills {
		if d := which(k); d == Missed {
			ms = append(ms, math.Inf(1))
			missed++
		} else {
			ms = append(ms, float64(d)/float64(time.Millisecond))
		}
	}
	return ms, missed
}

func first(k Kill) time.Duration { return k.First }
func all(k Kill) time.Duration   { return k.All }

// Parse reads a record.
func Parse(b []byte) (Run, error) {
	var r Run
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("record of a comparison: %w", err)
	}
	for i, c := range r.Cells {
		if !slices.ContainsFunc(r.Systems, func(s System) bool { return s.Name == c.System }) {
			return r, fmt.Errorf("record of a comparison: cells[%d].system %q: want the name of one of the systems", i, c.System)
		}
		if c.Piece < 0 || c.Piece >= len(r.Pieces) {
			return r, fmt.Errorf("record of a comparison: cells[%d].piece %d: want 0 to %d", i, c.Piece, len(r.Pieces)-1)
		}
	}
	return r, nil
}

// Record returns the run as JSON.
func (r Run) Record() ([]byte, error) {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return nil, fmt.Errorf("record of a comparison: %w", err)
	}
	return append(b, '\n'), nil
}

// Continue returns now, which has no cells yet, with the pieces, systems and cells of an earlier run before it. It refuses an
// earlier run whose cells now's cannot stand beside.
func (r Run) Continue(earlier Run) (Run, error) {
	if r.Short != earlier.Short {
		return r, errors.New("continue a comparison: one of the runs is of the short form: begin a new record")
	}
	out := r
	out.Pieces = slices.Concat(earlier.Pieces, r.Pieces)
	out.Cells = slices.Clone(earlier.Cells)
	out.Systems = slices.Clone(r.Systems)
	for _, s := range earlier.Systems {
		i := slices.IndexFunc(r.Systems, func(n System) bool { return n.Name == s.Name })
		if i < 0 {
			out.Systems = append(out.Systems, s)
			continue
		}
		if n := r.Systems[i]; n.Settings != s.Settings || n.Observer != s.Observer || n.Members != s.Members {
			return r, fmt.Errorf("continue a comparison: %s has other settings, observers or processes than in the record: "+
				"begin a new record", s.Name)
		}
	}
	return out, nil
}

// Now returns the current piece.
func (r *Run) Now() *Piece { return &r.Pieces[len(r.Pieces)-1] }

// Add adds a cell of the current piece in place of an earlier measurement, even of a better one.
func (r *Run) Add(c Cell) {
	c.Piece = len(r.Pieces) - 1
	if i := slices.IndexFunc(r.Systems, func(s System) bool { return s.Name == c.System }); i >= 0 {
		c.Version = r.Systems[i].Version
	}
	r.Cells = slices.DeleteFunc(r.Cells, func(o Cell) bool { return o.System == c.System && o.condition() == c.condition() })
	r.Cells = append(r.Cells, c)
}

// Has reports whether a piece has measured a system under a condition, even if the cell broke off.
func (r Run) Has(system string, at Condition) bool {
	return slices.ContainsFunc(r.Cells, func(c Cell) bool { return c.System == system && c.condition() == at })
}

func (c Cell) condition() Condition { return Condition{c.Members, c.Load} }

// sorted returns the cells by load, members and order of systems.
func (r Run) sorted() []Cell {
	place := func(c Cell) int {
		return slices.IndexFunc(r.Systems, func(s System) bool { return s.Name == c.System })
	}
	out := slices.Clone(r.Cells)
	slices.SortStableFunc(out, func(a, b Cell) int {
		return cmp.Or(a.Load.Loss-b.Load.Loss, a.Load.Loops-b.Load.Loops, a.Members-b.Members, place(a)-place(b))
	})
	return out
}

// oneLine joins the lines of a text.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
