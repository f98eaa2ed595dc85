package hostile

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Summary adds up the outcomes of many sequences.
type Summary struct {
	Sources, Machine, Begun string // Sources are git's tree hashes of the packages under test
	Took                    time.Duration
	First                   uint64 // seed
	Sequences               int
	Rows                    []Row // by torus and number of liars
	// Totals.
	Actions, Events, Challenges, Refused, Failed, Notified, Reduced, Destroyed, LinkSteps int
	Returned                                                                              time.Duration // the longest
	// Notices counts restart notices of liars. 0: the run drew none, nor any planned restart of an honest node.
	Notices int `json:",omitempty"`
	// Hints counts false hints that processes have ended. 0: the run drew none.
	Hints int `json:",omitempty"`
	// Waits counts verdicts on nodes that had the whole time to answer, and Absent statements of liars that a part is absent.
	// 0: the run drew or counted none.
	Waits  int `json:",omitempty"`
	Absent int `json:",omitempty"`
	// Broken counts the violations of each promise, and Seeds lists the first seeds that broke one.
	Broken []int
	Seeds  []uint64
}

// Row holds the results for one torus and number of liars.
type Row struct {
	Dims             grid.Dims
	Liars            int
	Sequences        int
	Failed           int // verdicts, on liars and the dead
	Reduced, Ended   int // steps
	Broken           int
	LongestReturning time.Duration
}

// maxSeeds limits the seeds that a summary lists.
const maxSeeds = 20

// Add adds the outcome of a sequence.
func (m *Summary) Add(seed uint64, s *Sequence, o *Outcome) {
	if short := int(numPromises) - len(m.Broken); short > 0 {
		m.Broken = append(m.Broken, make([]int, short)...)
	}
	m.Sequences++
	m.Actions += len(s.Actions)
	m.Events += o.Events
	m.Challenges += o.Challenges
	m.Refused += o.Refused
	m.Failed += o.Failed
	m.Notified += o.Notified
	m.Reduced += o.Reduced
	m.Destroyed += o.Destroyed
	m.LinkSteps += o.LinkSteps
	m.Notices += o.Notices
	m.Hints += o.Hints
	m.Waits += o.Waits
	m.Absent += o.Absent
	m.Returned = max(m.Returned, o.Returned)
	i := slices.IndexFunc(m.Rows, func(r Row) bool { return r.Dims == s.Dims && r.Liars == len(s.Liars) })
	if i < 0 {
		i = len(m.Rows)
		m.Rows = append(m.Rows, Row{Dims: s.Dims, Liars: len(s.Liars)})
	}
	r := &m.Rows[i]
	r.Sequences++
	r.Failed += o.Failed
	r.Reduced += o.Reduced
	r.Ended += o.Destroyed
	r.LongestReturning = max(r.LongestReturning, o.Returned)
	if o.Broken != "" {
		r.Broken++
		m.Broken[o.Promise]++
		m.Seeds = append(m.Seeds, seed)
		slices.Sort(m.Seeds)
		m.Seeds = m.Seeds[:min(len(m.Seeds), maxSeeds)]
	}
}

// promiseTexts are the texts of the promises, in the order of Promise.
var promiseTexts = [numPromises]string{
	Spared: "One liar causes no step that takes capacity away or ends work on a healthy, reachable node.",
	Alive:  "Fewer liars than the quorum make no healthy node, host or DNP FAILED, and put no healthy node into a group of dead ones.",
	Well:   "One liar makes no healthy node, host or DNP SICK if no message of honest nodes is lost.",
	Shut:   "One liar does not open the circuit breaker.",
	Wedged: "Nothing wedges: timers and challenges stay bounded, and %s after the last lie at the latest the map shows the truth and no " +
		"response is open for a healthy node.",
	Held:    "A restart notice delays verdicts on its signer and on the signer's links, by 30 s at most. A replayed notice delays none.",
	Patient: "Fewer liars than the quorum shorten no wait for the answer of a node, whatever refusals they forge.",
}

// dataMark begins the line of docs/hostile-input.md with the figures, for the check that the page contains nothing
// else.
const dataMark = "<!-- figures: "

// notices renders the section about restart notices; empty if the run drew none.
func (m *Summary) notices() string {
	if m.Notices == 0 {
		return ""
	}
	return fmt.Sprintf("\n## Restart notices\n\nLiars announced %d restarts of their halves, some of them for too long a time, and replayed "+
		"the notices of honest\nnodes that restarted as planned. A notice keeps the states of its signer and of the signer's links for up to "+
		"30 s: the\ntimes above leave these states out.\n", m.Notices)
}

// hints renders the section about hints; empty if the run drew none.
func (m *Summary) hints() string {
	if m.Hints == 0 {
		return ""
	}
	return fmt.Sprintf("\n## Hints\n\nLiars gave %d false hints that processes had ended: they claimed it in reports, and forged kernels' "+
		"answers to challenges\nthat they had read. Some of the dead nodes have kernels that really refuse frames and challenges.\n", m.Hints)
}

// Page renders docs/hostile-input.md, the whole page.
func (m *Summary) Page() (string, error) {
	rows := slices.Clone(m.Rows)
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(a.Dims.Nodes()-b.Dims.Nodes(), strings.Compare(a.Dims.String(), b.Dims.String()), a.Liars-b.Liars)
	})
	m.Rows = rows
	data, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Hostile but well-formed input\n")
	line("`make fuzz-semantics` writes this page; a test refuses any other text. The harness is `internal/sim/hostile`.\n")
	line("A sequence runs a small torus in virtual time. An attacker has the keys of both halves of some nodes. The attacker " +
		"reports every component, state,")
	line("kind and age that the decoder accepts, of its own node and of others. It replays others' signed messages, answers with " +
		"old or foreign answers,")
	line("falls silent, damages frames, restarts, and does not answer. Some reports and answers of honest nodes are lost. Some " +
		"sequences have a node that")
	line("really dies, an honest node that is cut off for a while, or a new leader. All messages pass the decoder, the awareness " +
		"machine, the leader's\nevidence, the gates, and a response engine. Its policies want one step of every class for every " +
		"fault, and all limits except the breaker are")
	line("wide open.\n")
	line("| | |\n|---|---|")
	line("| sequences | %d, seeds %d to %d |", m.Sequences, m.First, m.First+uint64(m.Sequences)-1)
	line("| sources (`git rev-parse HEAD:FOLDER`) | %s |", m.Sources)
	line("| begun | %s, took %s |", m.Begun, m.Took.Round(time.Second))
	line("| machine | %s |", m.Machine)
	line("| hostile actions; refused by the decoder | %d; %d |", m.Actions, m.Refused)
	line("| events into the machine; challenges out of it | %d; %d |", m.Events, m.Challenges)
	line("| FAILED verdicts, on liars and on dead nodes | %d |", m.Failed)
	line("| steps that notify, take capacity, may end work: on liars, on dead nodes, or caused by several liars | %d, %d, %d |", m.Notified,
		m.Reduced, m.Destroyed)
	line("| longest time from the last lie to a true map | %s of at most %s |", m.Returned, ReturnBound)
	line("\n## Promises\n")
	line("| promise | broken |\n|---|---|")
	for p := Spared; p < numPromises; p++ {
		if p == Held && m.Notices == 0 || p == Patient && m.Hints == 0 {
			continue
		}
		text := promiseTexts[p]
		if p == Wedged {
			text = fmt.Sprintf(text, ReturnBound)
		}
		line("| %s | %d |", text, m.Broken[p])
	}
	if len(m.Seeds) > 0 {
		line("\nThe first seeds that broke a promise: %s.", strings.Trim(fmt.Sprint(m.Seeds), "[]"))
	}
	line("\n## Worlds\n")
	line("| torus | quorum | liars | sequences | FAILED verdicts | steps that take capacity | that may end work | broken | longest " +
		"return |\n|---|---|---|---|---|---|---|---|---|")
	for _, r := range rows {
		line("| %s | %d | %d | %d | %d | %d | %d | %d | %s |", r.Dims, awareness.Quorum(len(r.Dims.Neighbours(grid.Coord{}))), r.Liars,
			r.Sequences, r.Failed, r.Reduced, r.Ended, r.Broken, r.LongestReturning)
	}
	b.WriteString(m.notices() + m.hints())
	line("\n## Remaining attacks\n")
	line("- A liar breaks its own links. The honest node at the other end reports that its end does not work. A policy may then " +
		"mask that link at the honest")
	line("  node, as for a cable that is really cut: %d masks in this run. No other step acts on a node because of one link.", m.LinkSteps)
	line("- Two liars are two witnesses: they can cause steps that need two witnesses.")
	line("- A component that its own node never measures was UNKNOWN before a lie and is UNKNOWN again afterwards. A response that " +
		"several liars caused\n  for such a component stays open until a person ends it.")
	line("- A node whose own answers are lost, and the neighbours of a node that really dies, do not count as healthy here for the " +
		"promises on SICK and\n  the breaker.")
	line("\n%s%s -->", dataMark, data)
	return b.String(), nil
}

// ParsePage returns the figures of a page that Page rendered.
func ParsePage(page string) (*Summary, error) {
	_, rest, ok := strings.Cut(page, dataMark)
	data, _, closed := strings.Cut(rest, " -->")
	if !ok || !closed {
		return nil, fmt.Errorf("no line that begins with %q", dataMark)
	}
	var m Summary
	if err := json.Unmarshal([]byte(data), &m); err != nil {
		return nil, fmt.Errorf("figures: %w", err)
	}
	return &m, nil
}
