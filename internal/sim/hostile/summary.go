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
	// Broken counts the violations of each promise, and Seeds lists the first seeds that broke one.
	Broken [numPromises]int
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
	Alive:  "Fewer liars than the quorum have no healthy node, host or DNP called FAILED, and no healthy node in a group of dead ones.",
	Well:   "One liar makes no healthy node, host or DNP SICK where nothing that honest nodes send is lost.",
	Shut:   "One liar does not open the circuit breaker.",
	Wedged: "Nothing wedges: timers and challenges stay bounded, and %s after the last lie at the latest the map shows the truth and no response is open for a healthy node.",
}

// dataMark begins the line of docs/hostile-input.md with the figures, for the check that the page contains nothing
// else.
const dataMark = "<!-- figures: "

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
	line("A sequence is a small torus in virtual time. An enemy has the keys of both halves of some nodes. It sends reports with every component,")
	line("state, kind and age that the decoder lets through, of its own node and of others; it replays what others signed, answers with old or foreign")
	line("answers, falls silent, damages frames, boots anew, and does not answer. Reports and answers of honest nodes are lost now and then; some sequences have a node")
	line("that truly dies, an honest node that is cut off for a while, or a new leader. All of it goes through the decoder, the awareness machine, the evidence that the leader gathers, the gates, and an engine with")
	line("policies that want one step of every class for every fault, with all limits wide open but the breaker.\n")
	line("| | |\n|---|---|")
	line("| sequences | %d, seeds %d to %d |", m.Sequences, m.First, m.First+uint64(m.Sequences)-1)
	line("| sources (`git rev-parse HEAD:FOLDER`) | %s |", m.Sources)
	line("| begun | %s, took %s |", m.Begun, m.Took.Round(time.Second))
	line("| machine | %s |", m.Machine)
	line("| hostile actions; of them refused by the decoder | %d; %d |", m.Actions, m.Refused)
	line("| events into the machine; challenges out of it | %d; %d |", m.Events, m.Challenges)
	line("| verdicts of FAILED, on liars and on the dead | %d |", m.Failed)
	line("| steps that notify, take capacity, may end work: on liars and on the dead, or by several liars | %d, %d, %d |", m.Notified,
		m.Reduced, m.Destroyed)
	line("| longest time from the last lie to the truth | %s of at most %s |", m.Returned, ReturnBound)
	line("\n## Promises\n")
	line("| promise | broken |\n|---|---|")
	for p := Spared; p < numPromises; p++ {
		text := promiseTexts[p]
		if p == Wedged {
			text = fmt.Sprintf(text, ReturnBound)
		}
		line("| %s | %d |", text, m.Broken[p])
	}
	if len(m.Seeds) > 0 {
		line("\nThe first seeds that broke one: %s.", strings.Trim(fmt.Sprint(m.Seeds), "[]"))
	}
	line("\n## Worlds\n")
	line("| torus | quorum | liars | sequences | verdicts of FAILED | steps that take capacity | that may end work | broken | longest return |\n|---|---|---|---|---|---|---|---|---|")
	for _, r := range rows {
		line("| %s | %d | %d | %d | %d | %d | %d | %d | %s |", r.Dims, awareness.Quorum(len(r.Dims.Neighbours(grid.Coord{}))), r.Liars,
			r.Sequences, r.Failed, r.Reduced, r.Ended, r.Broken, r.LongestReturning)
	}
	line("\n## What stays possible\n")
	line("- A liar breaks its own links. The honest node at the other end finds that its end does not work, and says so. A policy may then mask that link at the")
	line("  honest node, as for a cable that is really cut: %d masks in this run. No other step acts on a node for one link.", m.LinkSteps)
	line("- Two liars are two witnesses: what wants two can rest on them.")
	line("- A component that its own node never senses was UNKNOWN before a lie and is UNKNOWN again after it. A response that several liars caused for it stays open until a person ends it.")
	line("- A node whose own answers are lost, and the neighbours of a node that truly dies, are not counted as healthy here for the promises of SICK and of the breaker.")
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
