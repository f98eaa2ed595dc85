package actions

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Frequency limits. The ledger keeps the value from before the first limit, and the limits' own values, before anything
// is written. An undo restores only policies that still have the value written here. Several steps may want a limit at
// the same time: the lowest is in force, and the former value comes back with the last one.
//
// A value written to scaling_max_freq is one request among several: the kernel's cooling devices, firmware and drivers
// make others. The lowest request counts, the kernel rounds it to what the hardware has, and reads return the
// result (kernel: drivers/cpufreq/cpufreq.c, freq_qos). The request itself cannot be read. So a value that is
// read is judged in this way:
//
//   - A value higher than all that may be ours is another party's request.
//   - A value equal to the last one read is ours.
//   - A lower value is in doubt: the kernel throttles, or another party has requested less. Then our request is written
//     again. If the value rises, it was another party's, and is put back. If not, nothing of ours holds it down, and the
//     work continues. If the other request is no lower than the kernel's throttle at that moment, it cannot be detected.
//   - A value read while the kernel throttles never counts as another party's request. The value seen before the
//     throttle counts instead; without one the limit is refused.

// Limit is the steps' limit of the highest frequency of one cpufreq policy.
type Limit struct {
	Policy string `json:"policy"` // "policy0"
	Former uint64 `json:"former"` // before the first limit, kHz
	Ours   uint64 `json:"ours"`   // as last requested, or about to be
	// Was is the highest value that may have been requested before Ours, until Ours is known to be written, since the
	// writer may end in between. 0: Ours is written.
	Was uint64 `json:"was,omitempty"`
	// Read is the value read after the write, if it differs; 0: it does not.
	Read uint64 `json:"read,omitempty"`
	// Stood is the value read both before and after the write, if it is higher: the kernel had not followed yet, or is
	// held up. Only this exact value is ours; one between it and Ours is another party's. 0: there is none.
	Stood uint64 `json:"stood,omitempty"`
	// Lower is the value in doubt, until its origin is known. 0: there is none.
	Lower  uint64            `json:"lower,omitempty"`
	Owners map[string]uint64 `json:"owners"` // the limit that each step wants, by Attempt.Owner
}

// most returns the highest value that can be read while no other party has requested more.
func (f *Limit) most() uint64 { return max(f.Ours, f.Was, f.Read) }

// theirs reports whether a value that was read proves another party's higher request.
func (f *Limit) theirs(khz uint64) bool { return khz > f.most() && khz != f.Stood }

// set records that another value is about to be requested.
func (f *Limit) set(khz uint64) { f.Was, f.Ours, f.Read, f.Stood = max(f.most(), f.Stood), khz, 0, 0 }

// doubtful reports whether a value that was read may be another party's. Until a request is known to be written the
// value counts as ours.
func (f *Limit) doubtful(khz uint64) bool { return f.Was == 0 && khz < f.Ours && khz != f.Read }

// lowest returns the limit to enforce: no higher than the former value.
func (f *Limit) lowest() uint64 {
	return min(f.Former, slices.Min(slices.Collect(maps.Values(f.Owners))))
}

// Frequency is the state of one cpufreq policy, in kHz: see Documentation/admin-guide/pm/cpufreq.rst of the kernel.
type Frequency struct {
	Policy   string
	Min, Max uint64 // of the hardware: cpuinfo_min_freq, cpuinfo_max_freq
	Limit    uint64 // scaling_max_freq
	// Throttled describes the visible requests of the kernel and of firmware, and changes with them; empty: there are
	// none. If it is not empty, the value read may differ from the request.
	Throttled string
}

// Share returns the limit for a percentage of the hardware's highest frequency, but no less than its lowest.
func (f Frequency) Share(percent int) uint64 { return max(f.Max/100*uint64(percent), f.Min) }

// Write is a write to make.
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

// Seen records the values of policies that are neither limited by us nor throttled, and reports whether the ledger must
// be stored.
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

// Doubt is a limit whose value reads lower than requested.
type Doubt struct {
	Write            // ours, to be requested again
	Lower     uint64 // the value read, kHz
	Throttled string // as Frequency.Throttled
}

// Doubt returns the limits in doubt, and records them, so that their origin can be found even if the caller ends. It
// does not record values read while the kernel throttles, because they prove nothing later.
func (l *Ledger) Doubt(now []Frequency) (doubts []Doubt) {
	for i := range l.Limits {
		f := &l.Limits[i]
		is, ok := readOf(now, f.Policy)
		switch {
		case !ok || f.theirs(is.Limit):
		case f.Lower != 0 && is.Limit > f.Lower: // an earlier caller ended after it had raised the value
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

// Raised returns the values of other parties, which must be put back, once our requests are written again. A value that
// rose while the kernel's throttle changed counts as the kernel's.
func Raised(doubts []Doubt, now []Frequency) (writes []Write) {
	for _, d := range doubts {
		if f, ok := readOf(now, d.Policy); ok && f.Limit > d.Lower && f.Throttled == d.Throttled {
			writes = append(writes, Write{d.Policy, d.Lower})
		}
	}
	return writes
}

// Settle ends all doubts: limits of policies that other parties have set are dropped. It returns how many of them
// belonged to owner.
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

// ErrThrottled says that the earlier request is unknown, so that it could not be put back.
var ErrThrottled = errors.New("the kernel throttles, and the earlier setting is unknown")

// Limits applies a step's limit, in percent of the hardware's highest frequency, to the ledger's limits. It returns the
// new limits, and the writes to make once they are stored. A policy that another party has limited as low already is
// left alone. Repeating the call returns the same limits and no writes. The caller must have settled all doubts. seen
// is Ledger.Unlimited.
func Limits(have []Limit, now []Frequency, seen map[string]uint64, owner string, percent int) (limits []Limit, writes []Write, err error) {
	limits = cloneLimits(have)
	var unknown []string
	for _, f := range now {
		want := f.Share(percent)
		i := slices.IndexFunc(limits, func(l Limit) bool { return l.Policy == f.Policy })
		if i >= 0 && limits[i].theirs(f.Limit) { // another party has set it since
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
		if low := l.lowest(); low != l.Ours || l.Was != 0 { // the latter: stored, perhaps not written
			l.set(low)
			writes = append(writes, Write{f.Policy, low})
		}
	}
	if len(unknown) > 0 {
		return nil, nil, fmt.Errorf("%w: %s", ErrThrottled, strings.Join(unknown, ", "))
	}
	return limits, writes, nil
}

// Unlimit removes a step's limit. It returns the remaining limits, the writes to make, and how many policies are left
// alone because another party has set them since. Keep a policy's last limit until its former value is written again.
// The caller must have settled all doubts. offline are policies without an online processor: the kernel accepts no request for
// them, and keeps the present one. So their limits remain, and kept counts those of the step. If a policy is in neither list, it is
// gone, and the kernel has dropped its limit.
func Unlimit(have []Limit, now []Frequency, offline []string, owner string) (limits []Limit, writes []Write, others, kept int) {
	for _, l := range cloneLimits(have) {
		_, mine := l.Owners[owner]
		if !mine && l.Was == 0 {
			limits = append(limits, l)
			continue
		}
		if slices.Contains(offline, l.Policy) {
			limits = append(limits, l)
			if mine {
				kept++
			}
			continue
		}
		f, ok := readOf(now, l.Policy)
		if !ok || l.theirs(f.Limit) {
			if mine && (!ok || f.Limit != l.Former) { // an interrupted attempt may have put it back
				others++
			}
			continue
		}
		delete(l.Owners, owner)
		if len(l.Owners) == 0 {
			writes = append(writes, Write{l.Policy, l.Former})
			continue
		}
		if low := l.lowest(); low != l.Ours || l.Was != 0 { // the latter: the end of an interrupted attempt of any step
			l.set(low)
			writes = append(writes, Write{l.Policy, low})
		}
		limits = append(limits, l)
	}
	return limits, writes, others, kept
}

func cloneLimits(have []Limit) []Limit {
	out := slices.Clone(have)
	for i := range out {
		out[i].Owners = maps.Clone(out[i].Owners)
	}
	return out
}

// Written records the value read after a write to a policy. followed says that it differs from the value before.
func (l *Ledger) Written(policy string, khz uint64, followed bool) {
	for i := range l.Limits {
		f := &l.Limits[i]
		if f.Policy != policy {
			continue
		}
		switch {
		case khz == f.Ours || khz > f.most(): // the latter: another party has set it since
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

// Until returns the limits to store while the writes of Unlimit are made: the remaining limits, and those about to be
// put back.
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

// PutBack drops the last limits of policies whose former value is written again.
func (l *Ledger) PutBack(left []Limit, writes []Write) {
	l.Limits = slices.DeleteFunc(l.Limits, func(f Limit) bool {
		return !slices.ContainsFunc(left, func(k Limit) bool { return k.Policy == f.Policy }) &&
			slices.ContainsFunc(writes, func(w Write) bool { return w.Policy == f.Policy })
	})
}
