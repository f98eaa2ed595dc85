package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// Duration is a time.Duration that is written "25ms" in YAML.
type Duration = sensor.Duration

// Periods are all the times and thresholds that determine the detection latency and the cost of an idle node. Get them
// from Preset or from Timing.
type Periods struct {
	// TWrite is the period at which a half validates its own register word (seed 001 §III-E). 1ms to 10s, less than
	// TRead. If TRead is a multiple of TWrite, it costs no extra wake-ups.
	TWrite time.Duration
	// TRead is the period at which a half reads and invalidates the other's word. 2ms to 60s.
	TRead time.Duration
	// ReadMisses is K: the number of tolerated reads that find the word not validated; one more, and the other half
	// counts as dead. 0 to 16.
	ReadMisses int

	// LinkPeriod is the heartbeat's period on each torus link. 1ms to 10s.
	LinkPeriod time.Duration
	// LinkMisses is the number of tolerated lost heartbeats: a link is silent after (LinkMisses+1) periods without an
	// authentic frame. 1 to 64.
	LinkMisses int

	// SensorPeriod is the period at which sensors are read. 10ms to 10m.
	SensorPeriod time.Duration
	// DigestPeriod is the period of the reports that state everything. 50ms to 10m.
	DigestPeriod time.Duration
	// DigestMisses is the number of missing digests after which a half's last report counts as old. 2 to 64.
	DigestMisses int

	// ChallengeNode is the supervisor's wait for an answer of a node that a quorum accuses. If the node's kernel refuses
	// frames and challenges, because no process listens there, it waits for half of ChallengeHalf. 1ms to 1m.
	ChallengeNode time.Duration
	// ChallengeHalf is its wait for an answer of a half that the other half accuses. If the kernel has confirmed the end of
	// the accused process, it waits for half of ChallengeHalf. Otherwise, if the window between two kernels is silent, it
	// waits for ChallengeNode. 1ms to 1m.
	ChallengeHalf time.Duration
	// ChallengeSingle is the supervisor's wait for an answer if there are fewer witnesses than the quorum, from ChallengeNode to 10m.
	ChallengeSingle time.Duration

	// AckTimeout is the time for a report's first RECEIVED before the report takes another path: three slices of
	// scheduling (10 ms each) by default. 1ms to 10s.
	AckTimeout time.Duration

	// LinkSickRatio is the ratio of errors to frames above which a link is sick. Above 0, below 1.
	LinkSickRatio float64
	// LinkClearRatio is the ratio below which a sick link may recover. 0 or more, below LinkSickRatio.
	LinkClearRatio float64
	// LinkWindow is the number of frames for one error ratio. 10 to 100000.
	LinkWindow int
	// LinkMinErrors is the minimum number of errors for a SICK link, at any ratio. 1 to LinkWindow.
	LinkMinErrors int
	// LinkHoldOff is the time for which a link must be good before its state improves. After a
	// short silence without a lost frame (the peer paused) it improves at once, at most three times within this time. 0 to 10m.
	LinkHoldOff time.Duration
	// LinkGrace is the time for which a DNP half waits after its start for the first frame on a link. A link without
	// any frame is then FAILED. It must cover a start of the whole cluster. A new leader keeps the states of nodes that it
	// has not heard yet for DigestMisses times DigestPeriod, or for this time if it is set and longer. 0 (5s) to 10m.
	LinkGrace time.Duration
}

// MaxLinkGrace is the largest LinkGrace.
const MaxLinkGrace = 10 * time.Minute

// The presets' names.
const (
	PresetDefault = "default"
	PresetFast    = "fast"
	PresetRelaxed = "relaxed"
)

// Preset returns the periods of that name: default, fast or relaxed.
func Preset(name string) (Periods, error) {
	p := Periods{
		TWrite: 25 * time.Millisecond, TRead: 50 * time.Millisecond, ReadMisses: 1,
		LinkPeriod: 25 * time.Millisecond, LinkMisses: 2,
		SensorPeriod: 500 * time.Millisecond,
		DigestPeriod: 500 * time.Millisecond, DigestMisses: 4,
		ChallengeNode: 60 * time.Millisecond, ChallengeHalf: 20 * time.Millisecond, ChallengeSingle: 300 * time.Millisecond,
		AckTimeout:    30 * time.Millisecond,
		LinkSickRatio: 0.05, LinkClearRatio: 0.01, LinkWindow: 100, LinkMinErrors: 3, LinkHoldOff: 2 * time.Second,
	}
	switch name {
	case PresetDefault:
	case PresetFast:
		p.TWrite, p.TRead = 8*time.Millisecond, 16*time.Millisecond
		p.LinkPeriod = 8 * time.Millisecond
		p.SensorPeriod, p.DigestPeriod, p.DigestMisses = 200*time.Millisecond, 200*time.Millisecond, 5
		p.ChallengeNode, p.ChallengeHalf, p.ChallengeSingle = 15*time.Millisecond, 8*time.Millisecond, 100*time.Millisecond
		p.LinkHoldOff = time.Second
	case PresetRelaxed:
		p.TWrite, p.TRead, p.ReadMisses = 200*time.Millisecond, 500*time.Millisecond, 2
		p.LinkPeriod, p.LinkMisses = 250*time.Millisecond, 3
		p.SensorPeriod, p.DigestPeriod = 2*time.Second, 2*time.Second
		p.ChallengeNode, p.ChallengeHalf, p.ChallengeSingle = 500*time.Millisecond, 200*time.Millisecond, 2*time.Second
		p.AckTimeout = 200 * time.Millisecond
		p.LinkHoldOff = 10 * time.Second
	default:
		return Periods{}, fmt.Errorf("preset: given %q: want one of %s", name, strings.Join(PresetNames(), ", "))
	}
	return p, nil
}

// SupervisorGone bounds the time until a supervisor notices that another one is gone. It is the sum of the connection's keepalive (at least
// 12 s in gRPC) and the interval between two checks of the leader.
const SupervisorGone = 14 * time.Second

// LeastFenceMargin returns the shortest safe responses.fenceMargin in a cluster of several supervisors. Within it, a leader notices that
// another supervisor is gone, and halves notice that a link or the service network no longer works.
func (p Periods) LeastFenceMargin() time.Duration {
	return SupervisorGone + p.DigestPeriod*12/5 + p.LinkHoldOff
}

// PresetNames lists the presets.
func PresetNames() []string { return []string{PresetDefault, PresetFast, PresetRelaxed} }

// TransitAllowance is the part of the bounds for everything that is not a period: wake-ups, the hops of the report, two
// signatures and their checks, and etcd's commit on a busy machine.
const TransitAllowance = 40 * time.Millisecond

// PauseSettle is the longest time from the end of a half's pause to the report of its neighbours that they hear it: a period of
// the links and TransitAllowance.
func (p Periods) PauseSettle() time.Duration { return p.LinkPeriod + TransitAllowance }

// HalfBound is the longest time from the death of one half of a node with one kernel to its commit in the fault map: the
// watchdog, the challenge to the dead half, and TransitAllowance. A reader that was late itself adds
// the reads that it repeats; they are not in the bound.
func (p Periods) HalfBound() time.Duration {
	return watchdog.StaleBound(p.TRead, p.ReadMisses) + p.ChallengeHalf + TransitAllowance
}

// DPUHalfBound is HalfBound for a node with two kernels (platform DPU). It also bounds the verdict on the bus between them.
// While the window is cut, a half answers the challenge through its neighbours. So ChallengeNode replaces ChallengeHalf, and
// a second TransitAllowance is added.
func (p Periods) DPUHalfBound() time.Duration {
	return p.HalfBound() - p.ChallengeHalf + p.ChallengeNode + TransitAllowance
}

// NodeBound is the longest time from the death of a whole node, with enough neighbours alive for a
// quorum, to its commit in the fault map: silence of its links, the challenge, TransitAllowance.
func (p Periods) NodeBound() time.Duration {
	return p.silence() + p.ChallengeNode + TransitAllowance
}

// SingleBound is NodeBound when the living witnesses are fewer than the quorum.
func (p Periods) SingleBound() time.Duration {
	return p.silence() + p.ChallengeSingle + TransitAllowance
}

// silence is the longest time from a node's death to a neighbour's verdict that a link is silent, its
// last frame having been sent just before.
func (p Periods) silence() time.Duration { return p.Link().SilentAfter() }

// Link returns the part of a link's configuration that decides when it is silent.
func (p Periods) Link() torus.LinkConfig {
	return torus.LinkConfig{Period: p.LinkPeriod, Misses: p.LinkMisses}
}

// Validate names every field that is outside its range.
func (p Periods) Validate() error {
	var errs []error
	bad := func(field string, given, want any) {
		errs = append(errs, errors.New(ShortTimes(fmt.Sprintf("periods.%s: given %v: want %v", field, given, want))))
	}
	dur := func(field string, v, lo, hi time.Duration) {
		if v < lo || v > hi {
			bad(field, v, fmt.Sprintf("%v to %v", lo, hi))
		}
	}
	num := func(field string, v, lo, hi int) {
		if v < lo || v > hi {
			bad(field, v, fmt.Sprintf("%d to %d", lo, hi))
		}
	}
	dur("tWrite", p.TWrite, time.Millisecond, 10*time.Second)
	dur("tRead", p.TRead, 2*time.Millisecond, time.Minute)
	if p.TWrite >= p.TRead {
		bad("tWrite", p.TWrite, fmt.Sprintf("less than periods.tRead (%v)", p.TRead))
	}
	num("readMisses", p.ReadMisses, 0, 16)
	dur("linkPeriod", p.LinkPeriod, time.Millisecond, 10*time.Second)
	num("linkMisses", p.LinkMisses, 1, 64)
	dur("sensorPeriod", p.SensorPeriod, 10*time.Millisecond, 10*time.Minute)
	dur("digestPeriod", p.DigestPeriod, 50*time.Millisecond, 10*time.Minute)
	num("digestMisses", p.DigestMisses, 2, 64)
	dur("challengeNode", p.ChallengeNode, time.Millisecond, time.Minute)
	dur("challengeHalf", p.ChallengeHalf, time.Millisecond, time.Minute)
	dur("challengeSingle", p.ChallengeSingle, time.Millisecond, 10*time.Minute)
	if p.ChallengeSingle < p.ChallengeNode {
		bad("challengeSingle", p.ChallengeSingle, fmt.Sprintf("at least periods.challengeNode (%v)", p.ChallengeNode))
	}
	dur("ackTimeout", p.AckTimeout, time.Millisecond, 10*time.Second)
	// Written so that NaN is refused too.
	if !(p.LinkSickRatio > 0 && p.LinkSickRatio < 1) {
		bad("linkSickRatio", p.LinkSickRatio, "above 0 and below 1")
	}
	if !(p.LinkClearRatio >= 0 && p.LinkClearRatio < p.LinkSickRatio) {
		bad("linkClearRatio", p.LinkClearRatio, fmt.Sprintf("0 or more and below periods.linkSickRatio (%v)", p.LinkSickRatio))
	}
	num("linkWindow", p.LinkWindow, 10, 100000)
	num("linkMinErrors", p.LinkMinErrors, 1, max(1, p.LinkWindow))
	dur("linkHoldOff", p.LinkHoldOff, 0, 10*time.Minute)
	dur("linkGrace", p.LinkGrace, 0, MaxLinkGrace)
	return errors.Join(errs...)
}

// PeriodsOverride sets single values of a preset; nil fields keep the preset's value. Meanings, units and ranges are
// those of Periods.
type PeriodsOverride struct {
	TWrite          *Duration `json:"tWrite,omitempty"`
	TRead           *Duration `json:"tRead,omitempty"`
	ReadMisses      *int      `json:"readMisses,omitempty"`
	LinkPeriod      *Duration `json:"linkPeriod,omitempty"`
	LinkMisses      *int      `json:"linkMisses,omitempty"`
	SensorPeriod    *Duration `json:"sensorPeriod,omitempty"`
	DigestPeriod    *Duration `json:"digestPeriod,omitempty"`
	DigestMisses    *int      `json:"digestMisses,omitempty"`
	ChallengeNode   *Duration `json:"challengeNode,omitempty"`
	ChallengeHalf   *Duration `json:"challengeHalf,omitempty"`
	ChallengeSingle *Duration `json:"challengeSingle,omitempty"`
	AckTimeout      *Duration `json:"ackTimeout,omitempty"`
	LinkSickRatio   *float64  `json:"linkSickRatio,omitempty"`
	LinkClearRatio  *float64  `json:"linkClearRatio,omitempty"`
	LinkWindow      *int      `json:"linkWindow,omitempty"`
	LinkMinErrors   *int      `json:"linkMinErrors,omitempty"`
	LinkHoldOff     *Duration `json:"linkHoldOff,omitempty"`
	LinkGrace       *Duration `json:"linkGrace,omitempty"`
}

// Apply returns p with the overrides set. A nil override changes nothing.
func (o *PeriodsOverride) Apply(p Periods) Periods {
	if o == nil {
		return p
	}
	setDuration(&p.TWrite, o.TWrite)
	setDuration(&p.TRead, o.TRead)
	set(&p.ReadMisses, o.ReadMisses)
	setDuration(&p.LinkPeriod, o.LinkPeriod)
	set(&p.LinkMisses, o.LinkMisses)
	setDuration(&p.SensorPeriod, o.SensorPeriod)
	setDuration(&p.DigestPeriod, o.DigestPeriod)
	set(&p.DigestMisses, o.DigestMisses)
	setDuration(&p.ChallengeNode, o.ChallengeNode)
	setDuration(&p.ChallengeHalf, o.ChallengeHalf)
	setDuration(&p.ChallengeSingle, o.ChallengeSingle)
	setDuration(&p.AckTimeout, o.AckTimeout)
	set(&p.LinkSickRatio, o.LinkSickRatio)
	set(&p.LinkClearRatio, o.LinkClearRatio)
	set(&p.LinkWindow, o.LinkWindow)
	set(&p.LinkMinErrors, o.LinkMinErrors)
	setDuration(&p.LinkHoldOff, o.LinkHoldOff)
	setDuration(&p.LinkGrace, o.LinkGrace)
	return p
}

func set[T any](dst, v *T) {
	if v != nil {
		*dst = *v
	}
}

func setDuration(dst *time.Duration, v *Duration) {
	if v != nil {
		*dst = time.Duration(*v)
	}
}

// timing is the common part of Agent.Timing and Supervisor.Timing.
func timing(preset string, o *PeriodsOverride) (Periods, error) {
	p, err := Preset(preset)
	if err != nil {
		return Periods{}, err
	}
	p = o.Apply(p)
	return p, p.Validate()
}
