package deaths

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/lofamo/lofamo/internal/campaign/account"
)

// notOnDisk is how long before a death a report may have entered a node's log and still be missing on its disk: the spool
// writes behind the half (ADR 8). The promise of exactly one delivery begins after that.
const notOnDisk = time.Second

// reports collects from the programs' logs which reports nodes kept and the supervisor committed. It is safe for
// concurrent use.
type reports struct {
	dir string

	mu   sync.Mutex
	kept map[string]map[string]time.Time // by machine: when each report entered its log
	died map[string][]time.Time
	more *feed[string] // the machine that kept another report
	err  error         // of a file
}

// newReports collects from the logs of these machines and of the supervisor's.
func newReports(dir string, machines ...string) *reports {
	r := &reports{dir: dir, kept: map[string]map[string]time.Time{}, died: map[string][]time.Time{}, more: newFeed[string]()}
	for _, m := range machines {
		r.kept[m] = map[string]time.Time{}
	}
	return r
}

// wanted are parts of the lines that the account reads; all other lines are left out.
var wanted = [][]byte{[]byte(`"reports kept"`), []byte(`"reports replaced"`), []byte(`"term begins"`), []byte(`"inbox position"`),
	[]byte(`"report taken"`), []byte(`"reports committed"`)}

// add writes a line to the file of the account, if it is one.
func (r *reports) add(name string, line []byte) bool {
	line = bytes.TrimSpace(line)
	if !slices.ContainsFunc(wanted, func(w []byte) bool { return bytes.Contains(line, w) }) || !json.Valid(line) {
		return false
	}
	f, err := os.OpenFile(r.path(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.Write(append(line, '\n'))
		err = errors.Join(err, f.Close())
	}
	r.err = errors.Join(r.err, err)
	return true
}

func (r *reports) path(name string) string { return filepath.Join(r.dir, name+".reports") }

// agent takes a line of the log of a node's machine.
func (r *reports) agent(machine string, line []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var l struct {
		Msg     string
		Reports []string
	}
	if !r.add(machine, line) || json.Unmarshal(line, &l) != nil || l.Msg != account.Kept {
		return
	}
	for _, id := range l.Reports {
		r.kept[machine][id] = time.Now()
	}
	r.more.add(machine)
}

// supervisor takes a line of the supervisor's log.
func (r *reports) supervisor(line []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add("s1", line)
}

// dies records the death of a machine's kernel.
func (r *reports) dies(machine string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.died[machine] = append(r.died[machine], at)
}

// Reports are the counts of an account.
type Reports struct {
	Kept     int            `json:"kept"`
	Accepted int            `json:"accepted"` // committed at the supervisor, each counted once
	Replaced int            `json:"replaced"` // others stand for them
	Cut      int            `json:"cut"`      // kept in the last second before a death, and not yet on disk
	Lost     []string       `json:"lost,omitempty"`
	Doubled  []string       `json:"doubled,omitempty"`
	waiting  map[string]int // by machine
}

// count reads the account up to now. Reports in transit count as lost until they arrive.
func (r *reports) count() (out Reports, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept, audit := map[string]account.Fate{}, account.NewAudit()
	if err := errors.Join(r.err, audit.Read(r.path("s1"))); err != nil {
		return out, err
	}
	for m := range r.kept {
		if err := account.ReadKept(r.path(m), kept); err != nil {
			return out, err
		}
	}
	accepted := audit.Accepted()
	lost, doubled, replaced := account.Balance(kept, accepted)
	out = Reports{Kept: len(kept), Accepted: len(accepted), Replaced: replaced, Doubled: doubled, waiting: map[string]int{}}
	for _, id := range lost {
		m := r.owner(id)
		if slices.ContainsFunc(r.died[m], func(d time.Time) bool { at := r.kept[m][id]; return at.Before(d) && d.Sub(at) < notOnDisk }) {
			out.Cut++
			continue
		}
		out.waiting[m]++
		out.Lost = append(out.Lost, id)
	}
	slices.Sort(out.Lost)
	return out, nil
}

// owner returns the machine whose log has the report.
func (r *reports) owner(id string) string {
	for m := range r.kept {
		if _, ok := r.kept[m][id]; ok {
			return m
		}
	}
	return ""
}
