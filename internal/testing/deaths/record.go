package deaths

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// Line is one line of the record, in JSON. One of its fields is set.
type Line struct {
	Begin *Begin `json:"begin,omitempty"`
	Round *Round `json:"round,omitempty"`
	End   *End   `json:"end,omitempty"`
}

// campaign returns the campaign of a line.
func (l Line) campaign() string {
	switch {
	case l.Begin != nil:
		return l.Begin.Campaign
	case l.Round != nil:
		return l.Round.Campaign
	}
	return l.End.Campaign
}

// Begin is the start of a campaign. Times are in nanoseconds, here and below.
type Begin struct {
	Campaign   string        `json:"campaign"` // identifies it in the record
	Seed       uint64        `json:"seed"`
	Nodes      int           `json:"nodes,omitempty"` // 0 in old records: 3
	Commit     string        `json:"commit"`
	Machine    string        `json:"machine"`
	Load       string        `json:"load"` // averages of this machine
	Began      time.Time     `json:"began"`
	Preset     string        `json:"preset"`
	Bound      time.Duration `json:"bound"`               // documented, from a node's death to the verdict
	Cards      bool          `json:"cards,omitempty"`     // the nodes have two kernels
	HalfBound  time.Duration `json:"halfBound,omitempty"` // of two kernels: from the death of one, or the cut between them, to the verdict
	Only       string        `json:"only,omitempty"`      // regular expression that selected the kinds of death; "": all
	Conditions string        `json:"conditions"`
}

// Round is the result of one round. A time of 0 was not measured.
type Round struct {
	Campaign string        `json:"campaign"`
	Number   int           `json:"number"`
	Node     string        `json:"node"`
	Kind     string        `json:"kind"`
	Dark     bool          `json:"dark,omitempty"`    // the supervisor was paused
	Hung     bool          `json:"hung,omitempty"`    // the kernel hung instead of panicking, and the watchdog reset the machine
	Verdict  time.Duration `json:"verdict,omitempty"` // from the death to the node's verdict at the client
	Words    time.Duration `json:"words,omitempty"`   // from the panic to the last words at the client
	Named    time.Duration `json:"named,omitempty"`   // from the death to the name of its cause
	Normal   time.Duration `json:"normal,omitempty"`  // from the death until everything is NORMAL again
	End      string        `json:"end,omitempty"`     // as reported
	Detail   string        `json:"detail,omitempty"`  // as reported
	Right    bool          `json:"right"`             // the death was named rightly
	Waited   int           `json:"waited,omitempty"`  // reports that waited on the node's disk during the death
	False    []string      `json:"false,omitempty"`   // false verdicts
	Failures []string      `json:"failures,omitempty"`
}

// End is the end of a campaign.
type End struct {
	Campaign string        `json:"campaign"`
	Took     time.Duration `json:"took"`
	Machines time.Duration `json:"machines"` // sum of the virtual machines' running times
	Load     string        `json:"load"`
	Events   int           `json:"events"`
	Sick     int           `json:"sick"` // changes to SICK that no death explains
	// RoundTrip is the longest of ten ways through a window and back, of nodes with two kernels, before the first round.
	RoundTrip time.Duration `json:"roundTrip,omitempty"`
	Reports   Reports       `json:"reports"`
	Failure   string        `json:"failure,omitempty"` // ended the campaign early
	Note      string        `json:"note,omitempty"`    // added by hand: what people found later
}

// Append adds a line to a record.
func Append(path string, l Line) error {
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // published
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n')) // at once: campaigns may run side by side
	return errors.Join(err, f.Close())
}

// Read returns the lines of a record; a missing file has none.
func Read(path string) (out []Line, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		var l Line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("record %s, line %d: %w", path, n, err)
		}
		if l == (Line{}) {
			return nil, fmt.Errorf("record %s, line %d: want begin, round or end", path, n)
		}
		out = append(out, l)
	}
	return out, lines.Err()
}
