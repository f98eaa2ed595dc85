package supervisor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/durable"
)

// The alarms of a replica, as text and as labels of the metric lofamo_alarm.
const (
	alarmFull    = "store full"
	alarmCorrupt = "store corrupt"
	alarmSlow    = "store slow"
	alarmQuorum  = "no quorum"
	alarmRegion  = "region cut off"
	alarmRecords = "responses unreadable"
	alarmBreaker = "response breaker open"
	alarmDisk    = "disk low"
	alarmNoRoom  = "disk full"

	alarmRolledBack  = "store rolled back"
	alarmRevocations = "revocations missing"
	alarmGone        = "data directory gone"
)

func allAlarms() []string {
	return []string{
		alarmFull, alarmCorrupt, alarmSlow, alarmQuorum, alarmRegion, alarmRecords, alarmBreaker, alarmDisk, alarmNoRoom, alarmGone,
		alarmRolledBack, alarmRevocations,
	}
}

// slowSync is when a disk counts as slow. A healthy disk syncs in 0.5 to 20 ms; etcd advises 10 ms.
const slowSync = 100 * time.Millisecond

// slowCommit is when a commit counts as slow, wherever the etcd runs.
const slowCommit = time.Second

// alarms holds the present alarms of this replica. Only the monitor writes them.
type alarms struct {
	gauge *prometheus.GaugeVec

	mu    sync.Mutex
	words []string
}

func (a *alarms) set(words []string) {
	for _, alarm := range allAlarms() {
		v := 0.0
		if slices.ContainsFunc(words, func(w string) bool { return w == alarm || len(w) > len(alarm) && w[:len(alarm)+1] == alarm+":" }) {
			v = 1
		}
		a.gauge.WithLabelValues(alarm).Set(v)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.words = words
}

func (a *alarms) get() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.words
}

// complaints returns the alarms of the store: whether it answers with a quorum, this member's own etcd alarms, the
// recent time of a log sync (0: none), and how long the leader has waited for the commit in flight (0: none).
func complaints(quorum bool, own []etcdserverpb.AlarmType, sync, committing time.Duration) []string {
	var out []string
	for _, alarm := range own {
		switch alarm {
		case etcdserverpb.AlarmType_NOSPACE:
			out = append(out, alarmFull)
		case etcdserverpb.AlarmType_NONE: // never raised
		case etcdserverpb.AlarmType_CORRUPT:
			out = append(out, alarmCorrupt)
		}
	}
	switch {
	case sync >= slowSync:
		out = append(out, fmt.Sprintf("%s: a sync takes %s", alarmSlow, sync.Round(time.Millisecond)))
	case committing >= slowCommit:
		out = append(out, fmt.Sprintf("%s: a commit has been under way for %s", alarmSlow, committing.Round(100*time.Millisecond)))
	}
	if !quorum {
		out = append(out, alarmQuorum)
	}
	return out
}

// fullTime is how long the alarm of a full external etcd lasts after its last refusal. It exceeds the pause between two attempts to
// commit.
const fullTime = 10 * time.Second

// spaceRefusals notes when an external etcd last refused a commit because its store is full. A read of etcd's own alarms would cost it a
// commit each time.
type spaceRefusals struct {
	last atomic.Pointer[time.Time] // nil: never
}

// note notes an error of a commit.
func (r *spaceRefusals) note(err error, now time.Time) {
	if errors.Is(err, rpctypes.ErrNoSpace) {
		r.last.Store(&now)
	}
}

// alarms returns NOSPACE while commits are refused.
func (r *spaceRefusals) alarms(now time.Time) []etcdserverpb.AlarmType {
	if last := r.last.Load(); last != nil && now.Sub(*last) < fullTime {
		return []etcdserverpb.AlarmType{etcdserverpb.AlarmType_NOSPACE}
	}
	return nil
}

// regionsCut returns the alarm of a parent's leader about regions out of contact, or nothing if there are none.
func regionsCut(all []*lofamov1.Region) []string {
	var words []string
	for _, r := range all {
		switch {
		case r.GetState() == lofamov1.State_NORMAL:
		case r.GetAge() == nil:
			words = append(words, r.GetName())
		default:
			words = append(words, fmt.Sprintf("%s (since %s)", r.GetName(), r.GetAge().AsDuration().Round(time.Second)))
		}
	}
	if len(words) == 0 {
		return nil
	}
	return []string{alarmRegion + ": " + strings.Join(words, ", ")}
}

// responsesTroubled returns a leader's alarms about responses: it cannot continue from the committed state, or the
// breaker is open and waits for a person.
func responsesTroubled(broken bool, breaker string) []string {
	var words []string
	if broken {
		words = append(words, alarmRecords+": nothing is done about faults")
	}
	if breaker != "" {
		words = append(words, alarmBreaker+": "+breaker)
	}
	return words
}

// dataGone returns the alarm about a data directory that was deleted, and logs it once.
func (s *Supervisor) dataGone(logged *bool) []string {
	if s.store.member == nil {
		return nil
	}
	err := s.store.member.CheckDir()
	if err == nil {
		return nil
	}
	if !*logged {
		*logged = true
		s.logger.Error("data directory gone: this replica works until it ends, and cannot start again: replace it", "err", err)
	}
	return []string{alarmGone + ": " + err.Error()}
}

// diskLow returns the alarm about the free space of the data directory's disk, and logs its begin and its end.
func (s *Supervisor) diskLow(low *durable.Low) []string {
	if !s.cfg.Embedded() || s.cfg.DiskWarnBytes == 0 {
		return nil
	}
	room, err := durable.RoomOf(s.cfg.DataDir)
	if err != nil {
		return nil // its file system cannot be read: etcd finds out
	}
	if low.Update(room.Free, uint64(s.cfg.DiskWarnBytes)) {
		if low.On {
			s.logger.Warn("disk low: the store takes no writes when the disks are full", "data_dir", s.cfg.DataDir, "disk", room.Disk(),
				"free_bytes", room.Free, "diskWarnBytes", s.cfg.DiskWarnBytes)
		} else {
			s.logger.Info("the disk has room again", "data_dir", s.cfg.DataDir, "disk", room.Disk(), "free_bytes", room.Free)
		}
	}
	if !low.On {
		return nil
	}
	return []string{alarmDisk + ": " + room.String()}
}

// syncs reads etcd's own histogram of the sync times of its write-ahead log.
type syncs struct {
	count uint64
	sum   float64 // seconds
}

// syncMetric is the histogram's name in the default registry.
const syncMetric = "etcd_disk_wal_fsync_duration_seconds"

// mean returns the average time of a sync since the last call; 0: none.
func (s *syncs) mean(g prometheus.Gatherer) time.Duration {
	families, err := g.Gather()
	if err != nil && len(families) == 0 {
		return 0
	}
	for _, f := range families {
		if f.GetName() != syncMetric || len(f.GetMetric()) == 0 {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		count, sum := h.GetSampleCount()-s.count, h.GetSampleSum()-s.sum
		s.count, s.sum = h.GetSampleCount(), h.GetSampleSum()
		if count > 0 {
			return time.Duration(sum / float64(count) * float64(time.Second))
		}
	}
	return 0
}
