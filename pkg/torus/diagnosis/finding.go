package diagnosis

import (
	"fmt"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Test counts the outcomes of the probes of one kind.
type Test struct {
	Sent     uint32
	Answered uint32 // at most Sent
	Altered  uint32 // of those answered: came back altered
	Late     uint32 // of those answered: after LateAfter
	// Round trips of those answered; 0 without any.
	Min, Median, Max time.Duration
}

// Lost returns the number of unanswered probes.
func (t Test) Lost() uint32 { return t.Sent - min(t.Answered, t.Sent) }

// Loss is the share of probes that were not answered, 0 to 1: of the way there and back.
func (t Test) Loss() float64 {
	if t.Sent == 0 {
		return 0
	}
	return float64(t.Lost()) / float64(t.Sent)
}

// Finding is the result of a node's test of one of its links.
type Finding struct {
	Dir     grid.Direction
	DNP     Test // the neighbour's DNP half
	Host    Test // its host half; nothing sent: the neighbour cannot pass probes on
	Through Test // the node behind it; as above
	// Counts at this end of the link during the test: authentic frames, gaps in their numbers, and damaged frames. In a
	// run longer than LateAfter, Heard leaves out the first LateAfter, in which frames from before the run may still be
	// read.
	Heard, Missed, Damaged uint32
}

// works reports whether a probe was answered: then frames go both ways.
func (f *Finding) works() bool { return f.DNP.Answered+f.Host.Answered+f.Through.Answered > 0 }

// Verdict is one node's verdict on one link.
type Verdict uint8

// The verdicts.
const (
	Good Verdict = iota + 1
	// Slow: the answers took far longer than on the other links of the node.
	Slow
	// HostSilent: the neighbour's DNP half answers, and its host half does not.
	HostSilent
	// Lossy: probes, or frames from the neighbour, were lost.
	Lossy
	// Corrupt: probes to the neighbour's DNP half came back altered, or frames damaged.
	Corrupt
	// Dead: no test is answered, and the dead part is known (only Collate says so).
	Dead
	// NothingAnswers: the neighbour's DNP half, or the link: from one end they look the same.
	NothingAnswers
	// Inconclusive: no node that could have decided the case reported.
	Inconclusive
)

// String returns the text for people, "good" or "host silent".
func (v Verdict) String() string {
	switch v {
	case Good:
		return "good"
	case Slow:
		return "slow"
	case HostSilent:
		return "host silent"
	case Lossy:
		return "lossy"
	case Corrupt:
		return "corrupt"
	case Dead:
		return "dead"
	case NothingAnswers:
		return "nothing answers"
	case Inconclusive:
		return "inconclusive"
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

// Thresholds of the verdicts. One lost probe proves nothing.
const (
	lostSome    = 2
	missedSome  = 3
	damagedSome = 2
	// slowFloor is a round trip that is never slow where there are other links to compare with; slowAlone applies
	// where there are none.
	slowFloor = 50 * time.Millisecond
	slowAlone = 250 * time.Millisecond
	slowTimes = 4 // as long as on the other links
	fewTrips  = 4 // too few for the verdict slow
	// hostProbes is the number of unanswered probes that make a host half silent, over a link that loses no more than
	// hostLoss. By loss alone that would happen in 0.3⁴, less than 1 of 100 times, and the verdict needs further
	// witnesses anyway.
	hostProbes = 4
	hostLoss   = 0.3
)

// SlowLimit returns the median above which a link is slow, given the medians of the node's other links.
func SlowLimit(others []time.Duration) time.Duration {
	if len(others) == 0 {
		return slowAlone
	}
	s := slices.Sorted(slices.Values(others))
	return max(slowFloor, slowTimes*s[len(s)/2])
}

// Judge returns the node's own verdict on a link, given all its findings.
func Judge(f Finding, all []Finding) Verdict {
	switch {
	case !f.works():
		return NothingAnswers
	case f.corrupt():
		return Corrupt
	case f.lossy():
		return Lossy
	case f.hostSilent():
		return HostSilent
	case f.slow(all):
		return Slow
	}
	return Good
}

// corrupt and lossy use the DNP tests of this link alone: a probe that went through the neighbour, or to its host
// half, may have been altered or lost behind the link.
func (f *Finding) corrupt() bool { return f.DNP.Altered > 0 || f.Damaged >= damagedSome }

func (f *Finding) lossy() bool { return f.DNP.Lost() >= lostSome || f.Missed >= missedSome }

func (f *Finding) hostSilent() bool {
	return f.DNP.Answered > 0 && f.DNP.Loss() <= hostLoss && f.Host.Sent >= hostProbes && f.Host.Answered == 0
}

func (f *Finding) slow(all []Finding) bool {
	if f.DNP.Answered < fewTrips {
		return false
	}
	var others []time.Duration
	for i := range all {
		if o := &all[i]; o.Dir != f.Dir && o.DNP.Answered >= fewTrips {
			others = append(others, o.DNP.Median)
		}
	}
	return f.DNP.Median > SlowLimit(others)
}
