package trial

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lofamo/lofamo/internal/cluster"
)

const (
	sampleEvery = 5 * time.Second
	// warmUp is the part of a process's life that its slopes leave out. A supervisor takes longer to fill its bounded buffers: the
	// leader's 1,024 reports, 1,024 changes for watchers, 1,100 entries of raft's log, 1,000 events. A new leader fills them again.
	warmUp, storeWarmUp = 2 * time.Minute, 15 * time.Minute
	// slopeSpan is the least time for a slope in the record, and judgedSpan that for a violation. A slope covers the newest judgedSpan
	// only: for hours, a process still touches pages that it reserved at its start, at a falling rate.
	slopeSpan, judgedSpan = 5 * time.Minute, time.Hour
	// memoryLimit and countLimit are the largest slopes of a process: MB, and descriptors or threads, an hour.
	memoryLimit, countLimit = 1.0, 10.0
	mega                    = 1e6
)

// Resources samples memory, descriptors and threads of all processes of a cluster.
type Resources struct {
	list  func() []cluster.Process
	began time.Time
	stop  context.CancelFunc
	done  chan struct{}
	mu    sync.Mutex
	procs map[cluster.Process]*usage
	led   time.Duration // when the leader last changed, since began; 0: never
}

// usage is the samples of one process.
type usage struct {
	role                         string
	resident, descriptors, tasks []Sample
	// anonymous and files are parts of resident, see procStatus. mapped is the size of the files.
	anonymous, files, mapped []Sample
}

// WatchResources starts the sampling. Close ends it.
func WatchResources(list func() []cluster.Process) *Resources {
	ctx, stop := context.WithCancel(context.Background())
	r := &Resources{list: list, began: time.Now(), stop: stop, done: make(chan struct{}), procs: map[cluster.Process]*usage{}}
	go func() {
		defer close(r.done)
		tick := time.NewTicker(sampleEvery)
		defer tick.Stop()
		for {
			r.take()
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return r
}

// LeaderChanged says that another supervisor leads. The slopes of supervisors leave out all samples before that, because a leader needs
// more memory than the others.
func (r *Resources) LeaderChanged() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.led = time.Since(r.began)
}

// Close ends the sampling and keeps the samples.
func (r *Resources) Close() {
	r.stop()
	<-r.done
}

func (r *Resources) take() {
	list := r.list()
	at := time.Since(r.began)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range list {
		u := r.procs[p]
		if u == nil {
			u = &usage{role: roleOf(p)}
			r.procs[p] = u
		}
		now, err := readStatus(p.PID)
		if err != nil {
			continue // it has just ended
		}
		descriptors, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(p.PID), "fd"))
		if err != nil {
			continue
		}
		u.resident = append(u.resident, Sample{at, now.resident})
		u.mapped = append(u.mapped, Sample{at, mappedFiles(p.PID)})
		u.anonymous = append(u.anonymous, Sample{at, now.anonymous})
		u.files = append(u.files, Sample{at, now.files})
		u.tasks = append(u.tasks, Sample{at, now.tasks})
		u.descriptors = append(u.descriptors, Sample{at, float64(len(descriptors))})
	}
}

const supervisorRole = "supervisor"

// roleOf returns "host half", "DNP half", "daemon" or "supervisor".
func roleOf(p cluster.Process) string {
	if !p.Agent {
		return supervisorRole
	}
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID)) // of an ended process: daemon
	args := bytes.Split(b, []byte{0})
	if len(args) > 1 {
		switch string(args[1]) {
		case "host":
			return "host half"
		case "dnp":
			return "DNP half"
		}
	}
	return "daemon"
}

// procStatus is the memory of a process in MB, and its threads. Without swap the kernel cannot take anonymous memory back;
// shared memory counts as anonymous. It takes pages of files, such as the program and the store's database, back when it needs
// memory.
type procStatus struct{ resident, anonymous, files, tasks float64 }

func readStatus(pid int) (out procStatus, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return procStatus{}, err
	}
	const mb = 1024 / mega // of one KiB
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l)
		if len(f) < 2 {
			continue
		}
		var to *float64
		unit := mb
		switch f[0] {
		case "VmRSS:":
			to = &out.resident
		case "RssAnon:", "RssShmem:":
			to = &out.anonymous
		case "RssFile:":
			to = &out.files
		case "Threads:":
			to, unit = &out.tasks, 1
		default:
			continue
		}
		v, err := strconv.ParseFloat(f[1], 64)
		if err != nil {
			return procStatus{}, err
		}
		*to += v * unit
	}
	return out, nil
}

// mappedFiles returns the size of the files that a process maps, in MB; of each at most the mapped part. It bounds the resident
// pages of files.
func mappedFiles(pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0 // it has just ended
	}
	mapped := map[string]int64{}
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l) // address, rights, offset, device, inode, path
		if len(f) < 6 || f[4] == "0" {
			continue
		}
		var from, to int64
		if _, err := fmt.Sscanf(f[0], "%x-%x", &from, &to); err == nil {
			mapped[f[5]] += to - from
		}
	}
	sum := int64(0)
	for path, size := range mapped {
		if st, err := os.Stat(path); err == nil {
			size = min(size, st.Size())
		}
		sum += size
	}
	return float64(sum) / mega
}

// Usage is the consumption of all processes of one role. Slopes are of processes that were sampled for at least five
// minutes after their warm-up; Sloped is their number and Longest the longest time.
type Usage struct {
	Role        string        `json:"role"`
	Processes   int           `json:"processes"`
	Resident    float64       `json:"resident"`    // MB, the largest
	Descriptors float64       `json:"descriptors"` // the largest
	Threads     float64       `json:"threads"`     // the largest
	Sloped      int           `json:"sloped"`
	Longest     time.Duration `json:"longest"`
	Median      float64       `json:"median"`    // slope of the memory, MB/h
	Steepest    float64       `json:"steepest"`  // slope of the memory, MB/h
	MoreFiles   float64       `json:"moreFiles"` // steepest slope of descriptors, 1/h
	MoreThreads float64       `json:"moreThreads"`
	// Parts are the parts of the memory; nil: recorded by an earlier version.
	Parts *Parts `json:"parts,omitempty"`
}

// Parts are anonymous memory, resident pages of files and the size of these files: the largest in MB, and slopes in MB/h.
type Parts struct {
	Anonymous Part `json:"anonymous"`
	Files     Part `json:"files"`
	Mapped    Part `json:"mapped"`
}

// Part is one part of the memory of all processes of one role.
type Part struct {
	Most     float64 `json:"most"`
	Median   float64 `json:"median"`
	Steepest float64 `json:"steepest"`
}

// slopes are the slopes of one process, in MB or a number per hour.
type slopes struct{ memory, anonymous, files, mapped, descriptors, threads float64 }

// grows returns the slopes of the newest hour after the warm-up, and the time since the warm-up. led is when the leader last changed.
func (u *usage) grows(led time.Duration) (s slopes, over time.Duration) {
	slope := func(samples []Sample) float64 { return Slope(newest(u.warm(samples, led), judgedSpan)) }
	return slopes{slope(u.resident), slope(u.anonymous), slope(u.files), slope(u.mapped), slope(u.descriptors), slope(u.tasks)},
		spanOf(u.warm(u.resident, led))
}

// Usages returns the consumption by role, and a violation for every process that was sampled for an hour and grew.
func (r *Resources) Usages() (out []Usage, bad []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	byRole, grown := map[string]*Usage{}, map[string][]slopes{}
	for _, p := range slices.SortedFunc(maps.Keys(r.procs), func(a, b cluster.Process) int { return cmp.Compare(a.PID, b.PID) }) {
		u := r.procs[p]
		role := byRole[u.role]
		if role == nil {
			role = &Usage{Role: u.role, Parts: new(Parts)}
			byRole[u.role] = role
		}
		role.Processes++
		for to, samples := range map[*float64][]Sample{&role.Resident: u.resident, &role.Descriptors: u.descriptors, &role.Threads: u.tasks,
			&role.Parts.Anonymous.Most: u.anonymous, &role.Parts.Files.Most: u.files, &role.Parts.Mapped.Most: u.mapped} {
			*to = max(*to, most(samples))
		}
		s, span := u.grows(r.led)
		if span < slopeSpan {
			continue
		}
		role.Sloped++
		role.Longest = max(role.Longest, span.Round(time.Second))
		grown[u.role] = append(grown[u.role], s)
		if span >= judgedSpan {
			bad = append(bad, s.judge(u.role, p.PID)...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byRole)) {
		byRole[name].summarise(grown[name])
		out = append(out, *byRole[name])
	}
	return out, bad
}

// summarise fills in the slopes of a role.
func (u *Usage) summarise(all []slopes) {
	of := func(pick func(slopes) float64) (median, steepest float64) {
		var values []float64
		for _, s := range all {
			values = append(values, pick(s))
		}
		return Quantile(values, 0.5), Quantile(values, 1)
	}
	u.Median, u.Steepest = of(func(s slopes) float64 { return s.memory })
	_, u.MoreFiles = of(func(s slopes) float64 { return s.descriptors })
	_, u.MoreThreads = of(func(s slopes) float64 { return s.threads })
	p := u.Parts
	p.Anonymous.Median, p.Anonymous.Steepest = of(func(s slopes) float64 { return s.anonymous })
	p.Files.Median, p.Files.Steepest = of(func(s slopes) float64 { return s.files })
	p.Mapped.Median, p.Mapped.Steepest = of(func(s slopes) float64 { return s.mapped })
}

// judge returns the violations of one process. Pages of files that do not grow are no growth of the process: it reads them one
// after the other, and the size of the files bounds them.
func (s slopes) judge(role string, pid int) (bad []string) {
	if s.anonymous > memoryLimit {
		bad = append(bad, fmt.Sprintf("resources: %s, process %d, grows by %.2f MB/h of anonymous memory: limit %.0f MB/h", role, pid,
			s.anonymous, memoryLimit))
	}
	if s.files > memoryLimit && s.mapped > memoryLimit {
		bad = append(bad, fmt.Sprintf("resources: %s, process %d, grows by %.2f MB/h of pages of files, and these files by %.2f MB/h: "+
			"limit %.0f MB/h", role, pid, s.files, s.mapped, memoryLimit))
	}
	if s.descriptors > countLimit || s.threads > countLimit {
		bad = append(bad, fmt.Sprintf("resources: %s, process %d, has %.1f descriptors and %.1f threads more an hour: limit %.0f", role, pid,
			s.descriptors, s.threads, countLimit))
	}
	return bad
}

func most(s []Sample) float64 {
	out := 0.0
	for _, v := range s {
		out = max(out, v.Value)
	}
	return out
}

// warm leaves out the samples of the warm-up.
func (u *usage) warm(s []Sample, led time.Duration) []Sample {
	if len(s) == 0 {
		return nil
	}
	from := s[0].At + warmUp
	if u.role == supervisorRole {
		from = max(s[0].At, led) + storeWarmUp
	}
	i := slices.IndexFunc(s, func(v Sample) bool { return v.At >= from })
	if i < 0 {
		return nil
	}
	return s[i:]
}

// newest returns the samples of the last span.
func newest(s []Sample, span time.Duration) []Sample {
	if len(s) == 0 {
		return nil
	}
	i := slices.IndexFunc(s, func(v Sample) bool { return v.At >= s[len(s)-1].At-span })
	return s[i:]
}

func spanOf(s []Sample) time.Duration {
	if len(s) == 0 {
		return 0
	}
	return s[len(s)-1].At - s[0].At
}
