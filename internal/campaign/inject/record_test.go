package inject

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/machine"
)

// recordFile holds the counts of the run that docs/campaign.md prints.
const recordFile = "testdata/campaign.json"

// record holds all data of a run that the document prints. A run writes it beside the document, so that tests can
// render the text and compare it without 45 minutes of faults. Times are in nanoseconds.
type record struct {
	Full      bool          `json:"full"` // the whole campaign, not the short form
	Seed      uint64        `json:"seed"`
	Commit    string        `json:"commit"`
	Begun     time.Time     `json:"begun"`
	Took      time.Duration `json:"took"`
	Machine   string        `json:"machine"`
	Load      string        `json:"load"` // at the beginning
	LoadAfter string        `json:"loadAfter"`
	Failed    bool          `json:"failed"`
	// TakenOver means that the run predates records, and that this one was read from its printed page.
	TakenOver bool `json:"takenOver,omitempty"`
	// FoundLater is the number of lost reports that a recount of the run's logs found in the store.
	FoundLater int `json:"foundLater,omitempty"`

	Reports    reportCounts                `json:"reports"`
	Serving    spread                      `json:"serving"`    // from the detection of a fault, one at a time
	Categories map[string]map[category]int `json:"categories"` // of Table 1, by column
	HangBound  time.Duration               `json:"hangBound"`
	Timeline   []timelineRow               `json:"timeline"`
	Classes    []classRecord               `json:"classes"`
	// Code is the newest run of flips in code, which has conditions of its own.
	Code *record `json:"code,omitempty"`
	// Live is the newest run of flips in live data, which has conditions of its own.
	Live *record `json:"live,omitempty"`
	// Stream is the newest run of flips in the sending path of a stream, which has conditions of its own.
	Stream *streamRecord `json:"stream,omitempty"`
}

type reportCounts struct {
	Kept     int `json:"kept"`
	Replaced int `json:"replaced"`
	Lost     int `json:"lost"`
	Doubled  int `json:"doubled"`
}

// spread is the median and the 99th percentile of durations; both 0 if there are none.
type spread struct {
	Median time.Duration `json:"median"`
	P99    time.Duration `json:"p99"`
}

func spreadOf(d []time.Duration) spread { return spread{quantile(d, .5), quantile(d, .99)} }

func (s spread) String() string { return ms(s.Median) + ", " + ms(s.P99) }

// timelineRow is a row of Figure 10.
type timelineRow struct {
	Hang       bool   `json:"hang"`
	Recoveries int    `json:"recoveries"`
	Within     int    `json:"within"` // within the bound for a hang
	Doubts     int    `json:"doubts,omitempty"`
	Detect     spread `json:"detect"`
	Gone       spread `json:"gone"`
	Started    spread `json:"started"`
	Serving    spread `json:"serving"`
	Proven     spread `json:"proven"`
}

// classRecord is a class of faults as the document prints it.
type classRecord struct {
	Name      string           `json:"name"`
	Faults    int              `json:"faults"`
	Outcomes  map[outcome]int  `json:"outcomes"`
	By        map[detector]int `json:"by"`
	Effective int              `json:"effective"`
	Covered   int              `json:"covered"`
	ProberOf  int              `json:"proberOf"`
	Strict    int              `json:"strict"`
	Detect    spread           `json:"detect"`
	Recover   spread           `json:"recover"`
	Unhealed  []string         `json:"unhealed,omitempty"`
	Missed    []string         `json:"missed,omitempty"`
	Notes     []string         `json:"notes,omitempty"`
	Lost      int              `json:"lost,omitempty"`
	Doubled   int              `json:"doubled,omitempty"`
	Took      time.Duration    `json:"took"`
	Apart     bool             `json:"apart,omitempty"`
	// FoundQuiet are the faults that were found and had no effect, where the campaign separates these.
	FoundQuiet int `json:"foundQuiet,omitempty"`
}

// Columns of Table 1.
const (
	columnMemory    = "shared memory"
	columnProcesses = "processes"
	columnLive      = "live data"
)

// columnOf returns the column of Table 1 for a class.
func columnOf(k *class) string {
	switch {
	case k.name == codeSend || k.name == codeActive || k.name == codeStream || strings.HasPrefix(k.name, "live data: "):
		return k.name
	case k.apart:
		return columnLive
	case strings.HasPrefix(k.name, "processes") || k.name == "failpoints":
		return columnProcesses
	}
	return columnMemory
}

// record returns the record of the run.
func (c conditions) record() record {
	r := c.recordOf(done.classes)
	var serve []time.Duration
	for _, x := range done.courses {
		serve = append(serve, x.Serving)
	}
	r.Serving = spreadOf(serve)
	if periods, err := config.Preset(config.PresetDefault); err == nil {
		r.HangBound = halfcore.HangBound(periods.TRead, periods.ReadMisses)
		for _, hang := range []bool{true, false} {
			r.Timeline = append(r.Timeline, timelineOf(hang, r.HangBound, periods.TRead))
		}
	}
	return r
}

// recordOf returns the record of some classes of the run.
func (c conditions) recordOf(classes []*class) record {
	r := record{
		Full: *full, Seed: *seed, Commit: machine.SourceCommit(), Begun: c.began.UTC(), Took: time.Since(c.began).Round(time.Second),
		Machine: machine.Describe(), Load: c.load, LoadAfter: machine.LoadAverages(), Failed: c.failed,
		Reports: reportCounts{done.kept, done.replaced, done.lost, done.doubled}, Categories: map[string]map[category]int{},
	}
	for _, k := range classes {
		column := columnOf(k)
		if r.Categories[column] == nil {
			r.Categories[column] = map[category]int{}
		}
		for cat, n := range k.cats {
			r.Categories[column][cat] += n
		}
		r.Classes = append(r.Classes, k.record())
	}
	return r
}

func (c *class) record() classRecord {
	return classRecord{
		Name: c.name, Faults: c.n, Outcomes: maps.Clone(c.outcomes), By: maps.Clone(c.by), Effective: c.effective, Covered: c.covered,
		ProberOf: c.proberOf, Strict: c.strict,
		Detect: spreadOf(c.detects), Recover: spreadOf(c.recovers), Unhealed: c.unhealed, Missed: c.missed, Notes: c.notes, Lost: c.lost,
		Doubled: c.doubled, Took: c.took, Apart: c.apart, FoundQuiet: c.foundQuiet,
	}
}

func timelineOf(hang bool, bound, tRead time.Duration) timelineRow {
	r := timelineRow{Hang: hang}
	var d, g, s, v, p []time.Duration
	for _, x := range done.courses {
		if x.x.hang != hang {
			continue
		}
		r.Recoveries++
		d, g, s, v, p = append(d, x.detect), append(g, x.Gone), append(s, x.Started), append(v, x.Serving), append(p, x.Proven)
		switch ok, doubt := x.inTime(bound, tRead); {
		case ok:
			r.Within++
		case doubt:
			r.Doubts++
		}
	}
	r.Detect, r.Gone, r.Started, r.Serving, r.Proven = spreadOf(d), spreadOf(g), spreadOf(s), spreadOf(v), spreadOf(p)
	return r
}

// write writes the record.
func (r record) write(path string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

func readRecord(path string) (record, error) {
	var r record
	b, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("read record %s: %w", path, err)
	}
	return r, nil
}

// amend changes one part of a record and keeps the others.
func amend(t *testing.T, path string, change func(whole *record)) {
	t.Helper()
	whole, err := readRecord(path)
	if err != nil {
		t.Fatal(err)
	}
	change(&whole)
	if err := whole.write(path); err != nil {
		t.Fatal(err)
	}
}
