// The keeper decides which alerts go to which Alertmanager, and when. Alertmanager drops an alert that is not sent
// again before its end time. So the keeper sends each alert with an end time well ahead and repeats it long before that
// time while the fault lasts. This file is pure; run.go posts, waits and queries the standing alerts.
//
// Each Alertmanager of a cluster receives everything and has its own retries, because the members share notifications
// but not alerts. The keeper also repeats a resolved alert until the last end time sent while it fired has passed: an
// Alertmanager whose clock is slow takes a recent end time for a future one and keeps the later of the two.
//
// To Alertmanager, alerts with the same labels are one alert, even if they belong to different responses. So the keeper
// stops repeating the end of one when another starts to fire. If it must send such an end, it sends the firing alert
// right after.

package alertmanager

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// alertKey identifies an alert by its response and step.
type alertKey string

// alert is one alert to send. Its maps are immutable.
type alert struct {
	Key         alertKey
	Labels      map[string]string
	Annotations map[string]string
	StartsAt    time.Time
}

// keeperConfig holds the number of targets and the intervals.
type keeperConfig struct {
	Targets int           // number of Alertmanagers
	Resend  time.Duration // interval between two sends of an alert
	Hold    time.Duration // how far ahead the end time is set; more than Resend
	Batch   int           // maximum number of alerts in one request
}

// firstPause is the backoff after the first failed request; it doubles up to Resend.
const firstPause = 500 * time.Millisecond

// keeper holds the alerts to send. It is not safe for concurrent use.
type keeper struct {
	cfg     keeperConfig
	alerts  map[alertKey]*heldAlert
	targets []target
	changes int // counts calls of Fire, Resolve and Stand
}

type heldAlert struct {
	alert
	resolved time.Time // zero while it fires
	change   int       // keeper.changes when it was set, to recognise answers to an older version
	fired    time.Time // time of the last Fire
	awaited  bool      // a Do waits for it
	stands   bool      // the last Stand contained it
	at       []place   // by target
}

// place is the delivery state of an alert at one target.
type place struct {
	due    time.Time // time of the next send
	done   bool      // the target has the current version
	left   bool      // the target may have the current version
	flying bool      // a request with it is in flight
}

type target struct {
	busy     bool
	failures int
	pause    time.Time // end of the backoff
	why      string    // last error, empty after a success
}

// newKeeper returns an empty keeper.
func newKeeper(cfg keeperConfig) *keeper {
	return &keeper{cfg: cfg, alerts: map[alertKey]*heldAlert{}, targets: make([]target, cfg.Targets)}
}

// post is one request. The caller reports its outcome with Sent.
type post struct {
	Target int
	Alerts []sending
}

// sending is one alert of a request.
type sending struct {
	alert
	EndsAt time.Time // in the past for a resolved alert
	change int
}

// Fire starts sending an alert. A Do waits until one Alertmanager has it.
func (k *keeper) Fire(now time.Time, a alert) {
	if a.StartsAt.IsZero() || a.StartsAt.After(now) {
		a.StartsAt = now
	}
	n := k.put(now, a)
	n.fired, n.awaited = now, true
	k.dropEnds(n)
}

// dropEnds drops resolved alerts with the labels of a firing alert, except those that a Do waits for.
func (k *keeper) dropEnds(fires *heldAlert) {
	for key, a := range k.alerts {
		if !a.resolved.IsZero() && !a.awaited && maps.Equal(a.Labels, fires.Labels) {
			delete(k.alerts, key)
		}
	}
}

// firing returns the firing alerts with the given labels, sorted by key.
func (k *keeper) firing(labels map[string]string) []*heldAlert {
	var out []*heldAlert
	for _, a := range k.alerts {
		if a.resolved.IsZero() && maps.Equal(a.Labels, labels) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b *heldAlert) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

// Resolve sends the end of an alert, with the labels that it has in the keeper, if any. A Do waits until one Alertmanager has it.
func (k *keeper) Resolve(now time.Time, a alert) {
	if was := k.alerts[a.Key]; was != nil {
		a.StartsAt, a.Labels = was.StartsAt, was.Labels
	}
	if a.StartsAt.IsZero() || a.StartsAt.After(now) {
		a.StartsAt = now
	}
	n := k.put(now, a)
	n.resolved, n.awaited = now, true
}

// put replaces the alert with the same key.
func (k *keeper) put(now time.Time, a alert) *heldAlert {
	k.changes++
	n := &heldAlert{alert: a, at: make([]place, len(k.targets)), change: k.changes}
	for i := range n.at {
		n.at[i].due = now
	}
	k.alerts[a.Key] = n
	return n
}

// delivery is the current delivery state of an alert.
type delivery struct {
	Done int  // number of Alertmanagers that have it
	Left bool // an Alertmanager may have it
	// Why holds the last error by target, empty where there is none.
	Why []string
}

// State returns the delivery state of an alert, or the zero delivery if the keeper does not hold it.
func (k *keeper) State(key alertKey) delivery {
	a := k.alerts[key]
	if a == nil {
		return delivery{}
	}
	s := delivery{Why: make([]string, len(k.targets))}
	for i, p := range a.at {
		if p.done {
			s.Done++
		} else {
			s.Why[i] = k.targets[i].why
		}
		s.Left = s.Left || p.left || p.flying
	}
	return s
}

// Release ends the wait of a Do. If keep is true, the keeper goes on sending the alert; otherwise it drops it.
func (k *keeper) Release(key alertKey, keep bool) {
	a := k.alerts[key]
	switch {
	case a == nil:
	case keep && !a.resolved.IsZero() && len(k.firing(a.Labels)) > 0:
		delete(k.alerts, key)
	case keep:
		a.awaited = false
	default:
		delete(k.alerts, key)
	}
}

// Stand sets all alerts that stand according to the committed state. An alert that is already firing keeps its labels, and its
// next repetition carries the new annotations, such as a kernel's last words. The keeper stops sending any other alert, except
// awaited ones, those fired a moment ago, and ends. On a replica that does not lead, leads is false, and the keeper
// goes on sending awaited alerts only.
func (k *keeper) Stand(now time.Time, all []alert, leads bool) {
	among := map[alertKey]bool{}
	for _, a := range all {
		among[a.Key] = leads
		if was := k.alerts[a.Key]; was != nil {
			was.stands = true
			if leads && was.resolved.IsZero() {
				was.Annotations = a.Annotations
			}
		} else if leads {
			if a.StartsAt.IsZero() || a.StartsAt.After(now) {
				a.StartsAt = now
			}
			n := k.put(now, a)
			n.stands = true
			k.dropEnds(n)
		}
	}
	for key, a := range k.alerts {
		switch {
		case among[key] || a.awaited:
		case !leads:
			delete(k.alerts, key)
		case !a.resolved.IsZero():
		// It has fired, but its commit may not be visible yet.
		case !a.stands && now.Sub(a.fired) < k.cfg.Resend:
		default:
			delete(k.alerts, key)
		}
	}
}

// Sent records the outcome of a request. left says whether the Alertmanager may have received it. Sent returns the
// sorted keys of the alerts that one Alertmanager has now and none had before.
func (k *keeper) Sent(now time.Time, p post, ok, left bool, why string) []alertKey {
	t := &k.targets[p.Target]
	t.busy, t.why = false, why
	if ok {
		t.failures, t.pause, t.why = 0, time.Time{}, ""
	} else {
		t.pause = now.Add(min(firstPause<<min(t.failures, 10), k.cfg.Resend))
		t.failures++
	}
	var out []alertKey
	for _, s := range p.Alerts {
		a := k.alerts[s.Key]
		if a == nil || a.change != s.change {
			continue
		}
		at := &a.at[p.Target]
		at.flying = false
		if !ok {
			at.left = at.left || left
			continue
		}
		if !slices.ContainsFunc(a.at, func(p place) bool { return p.done }) {
			out = append(out, s.Key)
		}
		at.done, at.left, at.due = true, true, now.Add(k.cfg.Resend)
	}
	slices.Sort(out)
	return out
}

// Next returns the requests to send now and the latest time for the next call; zero if there is nothing to wait for.
func (k *keeper) Next(now time.Time) (posts []post, wake time.Time) {
	k.drop(now)
	for i := range k.targets {
		t := &k.targets[i]
		if t.busy {
			continue
		}
		first := k.first(i)
		if first.IsZero() {
			continue
		}
		if at := fault.Later(first, t.pause); at.After(now) {
			wake = fault.Earliest(wake, at)
			continue
		}
		t.busy = true
		posts = append(posts, post{i, k.batch(now, i)})
	}
	return posts, wake
}

// drop drops resolved alerts whose end time has passed at every Alertmanager.
func (k *keeper) drop(now time.Time) {
	for key, a := range k.alerts {
		if !a.resolved.IsZero() && !a.awaited && now.Sub(a.resolved) > k.cfg.Hold {
			delete(k.alerts, key)
		}
	}
}

// first returns the earliest due time at a target; zero if nothing is due.
func (k *keeper) first(i int) time.Time {
	var first time.Time
	for _, a := range k.alerts {
		if at := a.at[i]; first.IsZero() || at.due.Before(first) {
			first = at.due
		}
	}
	return first
}

// batch returns the alerts due at a target, the most overdue first. It includes alerts due soon, so that they share the
// request.
func (k *keeper) batch(now time.Time, i int) []sending {
	soon := now.Add(k.cfg.Resend / 10)
	var due []*heldAlert
	for _, a := range k.alerts {
		if !a.at[i].due.After(soon) {
			due = append(due, a)
		}
	}
	slices.SortFunc(due, func(a, b *heldAlert) int { return cmp.Or(a.at[i].due.Compare(b.at[i].due), cmp.Compare(a.Key, b.Key)) })
	due = due[:min(len(due), k.cfg.Batch)]
	for _, a := range slices.Clone(due) {
		if !a.resolved.IsZero() {
			for _, f := range k.firing(a.Labels) { // after the end, even if it was sent before
				due = append(slices.DeleteFunc(due, func(d *heldAlert) bool { return d == f }), f)
			}
		}
	}
	// The wall clock may have stepped back since the keeper got an alert. Alertmanager refuses a request with an alert that ends before it
	// starts. Times without a monotonic reading compare as Alertmanager compares them.
	wall := now.Round(0)
	out := make([]sending, 0, len(due))
	for _, a := range due {
		s := sending{alert: a.alert, EndsAt: wall.Add(k.cfg.Hold), change: a.change}
		s.StartsAt = fault.Earlier(a.StartsAt.Round(0), wall)
		if !a.resolved.IsZero() {
			s.EndsAt = fault.Earlier(a.resolved.Round(0), wall)
			s.StartsAt = fault.Earlier(s.StartsAt, s.EndsAt)
		}
		a.at[i].flying = true
		out = append(out, s)
	}
	return out
}
