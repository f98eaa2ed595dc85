package actions

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The limits of frequencies. What was there before the first of them, and what is there by them, is kept before anything is
// written; put back is only what is still as it was written. Several steps may want a limit at a time: the lowest is in force,
// and what was there before comes back with the last of them.
//
// What is written to scaling_max_freq is a request, one of several: the kernel's cooling devices, firmware and drivers have
// theirs, the lowest counts, it is rounded to what the hardware has, and that is what is read (kernel: drivers/cpufreq/cpufreq.c,
// freq_qos). What was requested cannot be read. So
//
//   - what is higher than all that may be ours is somebody else's request;
//   - what is as it was last read is ours;
//   - what is lower is in doubt: the kernel throttles, or somebody has requested less. Our own request is written again then. If that raises what is read it
//     was somebody's, which is put back; if it does not, nothing of ours holds it down, and what is done goes on. Somebody's request that is not lower than
//     what the kernel throttles to at that moment nobody can tell.
//   - what is read while the kernel throttles is never taken for what somebody has requested: what was seen before that is, or the limit is refused.

// Limit is what steps have made of the highest frequency of one cpufreq policy.
type Limit struct {
	Policy string `json:"policy"` // "policy0"
	Former uint64 `json:"former"` // before the first of them, kHz
	Ours   uint64 `json:"ours"`   // as it was requested last, or is about to be
	// Was is the highest that may have been requested before that, until it is known to be written: whoever writes may end between.
	// 0: it is written.
	Was uint64 `json:"was,omitempty"`
	// Read is what could be read after that, where it was another value; 0: nothing else.
	Read uint64 `json:"read,omitempty"`
	// Stood is what was read before as well as after that, where it is higher: the kernel had not followed yet, or is held up. Only
	// this very value is ours: what is between it and Ours is somebody's. 0: nothing of the kind.
	Stood uint64 `json:"stood,omitempty"`
	// Lower is what is read, and in doubt, until it is known whose it is. 0: nothing is in doubt.
	Lower  uint64            `json:"lower,omitempty"`
	Owners map[string]uint64 `json:"owners"` // what each step wants, by Attempt.Owner
}

// most is the highest that can be read while nobody has requested more than we have.
func (f *Limit) most() uint64 { return max(f.Ours, f.Was, f.Read) }

// theirs says of what is read that somebody has requested more than we have.
func (f *Limit) theirs(khz uint64) bool { return khz > f.most() && khz != f.Stood }

// set notes that another value is about to be requested.
func (f *Limit) set(khz uint64) { f.Was, f.Ours, f.Read, f.Stood = max(f.most(), f.Stood), khz, 0, 0 }

// doubtful says of what is read that it may be somebody's. Until a request is known to be written it is ours.
func (f *Limit) doubtful(khz uint64) bool { return f.Was == 0 && khz < f.Ours && khz != f.Read }

// lowest is what is to be in force: no higher than it was before.
func (f *Limit) lowest() uint64 {
	return min(f.Former, slices.Min(slices.Collect(maps.Values(f.Owners))))
}

// Frequency is one cpufreq policy as it is, in kHz: see Documentation/admin-guide/pm/cpufreq.rst of the kernel.
type Frequency struct {
	Policy   string
	Min, Max uint64 // that the hardware has: cpuinfo_min_freq, cpuinfo_max_freq
	Limit    uint64 // scaling_max_freq
	// Throttled is what can be seen of requests of the kernel and of firmware, another text whenever they are others; empty: they
	// have none. Where it is not empty what is read may not be what was requested.
	Throttled string
}

// Share is what a policy is limited to in percent of what the hardware has, and no lower than that can go.
func (f Frequency) Share(percent int) uint64 { return max(f.Max/100*uint64(percent), f.Min) }

// Write is one to be made.
type Write struct {
	Policy string
	KHz    uint64
}

func readOf(now []Frequency, policy string) (Frequency, bool) {
	i := slices.IndexFunc(now, func(f Frequency) bool { return f.Policy == policy })
	if i < 0 {
		return Frequency{}, false
	}
	return now[i], true
}

// Seen notes what is read of policies that are neither limited by us nor throttled, and says whether there is something to keep.
func (l *Ledger) Seen(now []Frequency) (keep bool) {
	for _, f := range now {
		limited := slices.ContainsFunc(l.Limits, func(l Limit) bool { return l.Policy == f.Policy })
		if limited || f.Throttled != "" && f.Limit < f.Max || l.Unlimited[f.Policy] == f.Limit {
			continue
		}
		if l.Unlimited == nil {
			l.Unlimited = map[string]uint64{}
		}
		l.Unlimited[f.Policy], keep = f.Limit, true
	}
	return keep
}

// Doubt is a limit of which something lower is read than was requested.
type Doubt struct {
	Write            // ours, to be requested again
	Lower     uint64 // what was read, kHz
	Throttled string // as Frequency.Throttled
}

// Doubt returns which limits are in doubt, and notes it, so that it can be told whose they are also when whoever asks ends. What
// is read while the kernel throttles is not noted: it says nothing later.
func (l *Ledger) Doubt(now []Frequency) (doubts []Doubt) {
	for i := range l.Limits {
		f := &l.Limits[i]
		is, ok := readOf(now, f.Policy)
		switch {
		case !ok || f.theirs(is.Limit):
		case f.Lower != 0 && is.Limit > f.Lower: // whoever has asked before has ended, and has raised it
			doubts = append(doubts, Doubt{Write{f.Policy, f.Ours}, f.Lower, is.Throttled})
		case f.doubtful(is.Limit):
			doubts = append(doubts, Doubt{Write{f.Policy, f.Ours}, is.Limit, is.Throttled})
			if f.Lower = is.Limit; is.Throttled != "" {
				f.Lower = 0
			}
		default:
			f.Lower = 0
		}
	}
	return doubts
}

// Raised returns what is somebody's, now that ours is requested again: it is to be put back. What has risen while the kernel
// throttled otherwise was the kernel's, as far as anybody can tell.
func Raised(doubts []Doubt, now []Frequency) (writes []Write) {
	for _, d := range doubts {
		if f, ok := readOf(now, d.Policy); ok && f.Limit > d.Lower && f.Throttled == d.Throttled {
			writes = append(writes, Write{d.Policy, d.Lower})
		}
	}
	return writes
}

// Settle ends all doubts: what was somebody's, and is put back, is his. It returns how many of these were an owner's.
func (l *Ledger) Settle(theirs []Write, owner string) (lost int) {
	l.Limits = slices.DeleteFunc(l.Limits, func(f Limit) bool {
		his := slices.ContainsFunc(theirs, func(w Write) bool { return w.Policy == f.Policy })
		if _, was := f.Owners[owner]; his && was {
			lost++
		}
		return his
	})
	for i := range l.Limits {
		l.Limits[i].Lower = 0
	}
	return lost
}

// ErrThrottled says that nobody can tell what was requested before, so that it could not be put back.
var ErrThrottled = errors.New("the kernel throttles, and what was set before that was not seen")

// Limits returns what a step's limit, in percent of what the hardware has, makes of the ledger's limits, and what is to be
// written once that is kept. A policy that somebody else has limited as low already is left to him. With what has been done it
// returns the same again, and no writes. There are no doubts left. seen is Ledger.Unlimited.
func Limits(have []Limit, now []Frequency, seen map[string]uint64, owner string, percent int) (limits []Limit, writes []Write, err error) {
	limits = cloneLimits(have)
	var unknown []string
	for _, f := range now {
		want := f.Share(percent)
		i := slices.IndexFunc(limits, func(l Limit) bool { return l.Policy == f.Policy })
		if i >= 0 && limits[i].theirs(f.Limit) { // somebody has set another since
			limits = slices.Delete(limits, i, i+1)
			i = -1
		}
		if i < 0 {
			former := f.Limit
			if f.Throttled != "" && f.Limit < f.Max {
				if former = seen[f.Policy]; former < f.Limit {
					unknown = append(unknown, f.String())
					continue
				}
			}
			if former <= want {
				continue
			}
			limits = append(limits, Limit{Policy: f.Policy, Former: former, Ours: former, Owners: map[string]uint64{}})
			i = len(limits) - 1
		}
		l := &limits[i]
		l.Owners[owner] = want
		if low := l.lowest(); low != l.Ours || l.Was != 0 { // the latter: kept, and perhaps not written, for whoever did has ended between
			l.set(low)
			writes = append(writes, Write{f.Policy, low})
		}
	}
	if len(unknown) > 0 {
		return nil, nil, fmt.Errorf("%w: %s", ErrThrottled, strings.Join(unknown, ", "))
	}
	return limits, writes, nil
}

// Unlimit returns what is left of the limits once a step's is put back, what is to be written, and how many policies are left as
// they are because somebody else has set them since. A policy's last limit is to be kept until what was there before is written
// again. There are no doubts left.
func Unlimit(have []Limit, now []Frequency, owner string) (limits []Limit, writes []Write, others int) {
	for _, l := range cloneLimits(have) {
		_, mine := l.Owners[owner]
		if !mine && l.Was == 0 {
			limits = append(limits, l)
			continue
		}
		f, ok := readOf(now, l.Policy)
		if !ok || l.theirs(f.Limit) {
			if mine && (!ok || f.Limit != l.Former) { // an attempt that was interrupted may have put it back
				others++
			}
			continue
		}
		delete(l.Owners, owner)
		if len(l.Owners) == 0 {
			writes = append(writes, Write{l.Policy, l.Former})
			continue
		}
		if low := l.lowest(); low != l.Ours || l.Was != 0 { // the latter: the end of an attempt that was interrupted, of whichever step
			l.set(low)
			writes = append(writes, Write{l.Policy, low})
		}
		limits = append(limits, l)
	}
	return limits, writes, others
}

func cloneLimits(have []Limit) []Limit {
	out := slices.Clone(have)
	for i := range out {
		out[i].Owners = maps.Clone(out[i].Owners)
	}
	return out
}

// Written notes what could be read of a policy after it was written. followed: it is another value than before.
func (l *Ledger) Written(policy string, khz uint64, followed bool) {
	for i := range l.Limits {
		f := &l.Limits[i]
		if f.Policy != policy {
			continue
		}
		switch {
		case khz == f.Ours || khz > f.most(): // the latter: somebody has set it since
		case khz > f.Ours && !followed:
			f.Stood = khz
		default:
			f.Read = khz
		}
		f.Was = 0
	}
}

func (f Frequency) String() string {
	return fmt.Sprintf("%s at %d of %d kHz", f.Policy, f.Limit, f.Max)
}

// Until returns what is kept while the writes of Unlimit are made: what is left, and of what is put back that there is something
// to put back.
func Until(have, left []Limit, writes []Write) []Limit {
	out := cloneLimits(left)
	for _, l := range have {
		has := func(f Limit) bool { return f.Policy == l.Policy }
		if !slices.ContainsFunc(left, has) && slices.ContainsFunc(writes, func(w Write) bool { return w.Policy == l.Policy }) {
			out = append(out, l)
		}
	}
	return out
}

// PutBack drops the last limits of policies of which what was there before is written again.
func (l *Ledger) PutBack(left []Limit, writes []Write) {
	l.Limits = slices.DeleteFunc(l.Limits, func(f Limit) bool {
		return !slices.ContainsFunc(left, func(k Limit) bool { return k.Policy == f.Policy }) &&
			slices.ContainsFunc(writes, func(w Write) bool { return w.Policy == f.Policy })
	})
}
