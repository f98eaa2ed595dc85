package trial

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/testing/machine"
)

// Record is the result of a trial, and all that Document prints. Times are in nanoseconds.
type Record struct {
	Dims        string        `json:"dims"`
	Preset      string        `json:"preset"`
	Supervisors int           `json:"supervisors"`
	Restarts    bool          `json:"restarts"` // daemons restart halves
	Load        int           `json:"load"`     // the largest number of busy loops
	Unharmed    Unharmed      `json:"unharmed,omitzero"`
	Seed        uint64        `json:"seed"`
	Commit      string        `json:"commit"`
	Machine     string        `json:"machine"`
	LoadBefore  string        `json:"loadBefore"` // of the machine
	LoadAfter   string        `json:"loadAfter"`
	Began       time.Time     `json:"began"`
	Took        time.Duration `json:"took"`

	Rounds  int            `json:"rounds"` // that were played to their end
	Steps   map[string]int `json:"steps"`
	Events  int            `json:"events"`
	Leaders int            `json:"leaders"` // changes of the leader seen at the ends of rounds
	Refused int            `json:"refused"` // calls and restarts
	Unsure  int            `json:"unsure"`  // calls without a clear answer
	Sick    int            `json:"sick"`    // changes to SICK without a fault

	Faults []*Delays `json:"faults"`
	Normal []*Delays `json:"normal"` // from the heal until everything is NORMAL
	Usages []Usage   `json:"usages"`
	// Incidents compares the incidents with the faults; nil in records from before that, and if daemons restart halves.
	Incidents  *IncidentScore `json:"incidents,omitempty"`
	Violations []string       `json:"violations,omitempty"`
	// Failure is the error that ended the trial early; empty: none.
	Failure string `json:"failure,omitempty"`
}

// Delays are the measured delays of one kind of fault under one load.
type Delays struct {
	Kind   string          `json:"kind,omitempty"`
	Loops  int             `json:"loops"`
	Took   []time.Duration `json:"took"`
	Beyond int             `json:"beyond"` // delays beyond the plain bound
	Missed int             `json:"missed"` // not named within the allowed multiple of the bound
	Bound  time.Duration   `json:"bound"`  // the largest, without load
}

func newRecord(o Options) *Record {
	var score *IncidentScore
	if !o.Restarts {
		score = new(IncidentScore)
	}
	return &Record{Incidents: score, Dims: o.Dims.String(), Preset: o.Preset, Supervisors: o.Supervisors, Restarts: o.Restarts,
		Load: o.Shape.Load, Unharmed: o.Unharmed,
		Seed: o.Seed, Commit: machine.SourceCommit(), Machine: machine.Describe(),
		LoadBefore: machine.LoadAverages(), Began: time.Now().UTC(), Steps: map[string]int{}}
}

func cores() int { return runtime.NumCPU() }

// row returns the row of a kind and a load, made if need be.
func row(rows *[]*Delays, kind string, loops int, bound time.Duration) *Delays {
	i := slices.IndexFunc(*rows, func(d *Delays) bool { return d.Kind == kind && d.Loops == loops })
	if i < 0 {
		i = len(*rows)
		*rows = append(*rows, &Delays{Kind: kind, Loops: loops})
	}
	d := (*rows)[i]
	d.Bound = max(d.Bound, bound)
	return d
}

func (d *Delays) add(took, bound time.Duration) {
	d.Took = append(d.Took, took.Round(time.Microsecond))
	if took > bound {
		d.Beyond++
	}
}

func (r *Record) named(kind string, loops int, took, bound time.Duration) {
	row(&r.Faults, kind, loops, bound).add(took, bound)
}

func (r *Record) missed(kind string, loops int, bound time.Duration) {
	row(&r.Faults, kind, loops, bound).Missed++
}

func (r *Record) normal(loops int, took, bound time.Duration) {
	row(&r.Normal, "", loops, bound).add(took, bound)
}

// ReadRecords reads a file of records; a missing file has none.
func ReadRecords(path string) (out []*Record, err error) {
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read records of trials: %w", err)
	}
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, fmt.Errorf("read records of trials %s: %w", path, err)
	}
	return out, nil
}

// AppendRecord adds a record to a file and returns all of them.
func AppendRecord(path string, r *Record) ([]*Record, error) {
	all, err := ReadRecords(path)
	if err != nil {
		return nil, err
	}
	all = append(all, r)
	b, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("write records of trials: %w", err)
	}
	return all, durable.WriteFile(path, append(b, '\n'), 0o644)
}
