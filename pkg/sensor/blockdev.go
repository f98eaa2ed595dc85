// A blockdevSource judges a peripheral that is a block device, e.g. an NVMe or SCSI disk, by the kernel's data:
// presence, size, device state, and whether requests still complete.
//
// It issues no I/O of its own and reads no SMART data: a check script can do both.

package sensor

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
)

// stalled is how long requests may be in flight without any completing before a device is SICK: well beyond a disk's
// spin-up retries, well below the kernel's 30 s command timeout.
const stalled = 10 * time.Second

// blockdevConfig selects the device.
type blockdevConfig struct {
	Sysfs     string
	Device    string // the kernel's name, such as nvme0n1
	Component fault.Component
	Clock     source.Clock
}

// blockdevSource is one block device.
type blockdevSource struct {
	cfg     blockdevConfig
	sys     source.Root
	seen    bool // it once existed, with a size
	done    uint64
	waiting bool      // requests were in flight at the last reading
	since   time.Time // since when they have been, without any completing
}

// newBlockdev returns the source.
func newBlockdev(cfg blockdevConfig) *blockdevSource {
	return &blockdevSource{cfg: cfg, sys: source.Root(cfg.Sysfs)}
}

// Name returns "blockdev:" and the device's name.
func (s *blockdevSource) Name() string { return "blockdev:" + s.cfg.Device }

// Component returns the configured component.
func (s *blockdevSource) Component() fault.Component { return s.cfg.Component }

// resume implements resumer.
func (s *blockdevSource) resume(source.Reading) { s.seen = true }

// Read measures now. A device that never existed is unknown; one that has disappeared is FAILED.
func (s *blockdevSource) Read(context.Context) (source.Reading, error) {
	j := source.NewJudge(s.cfg.Component, s.Name())
	absent := "no block device " + s.cfg.Device + " on this machine"
	if !s.sys.Exists("class/block", s.cfg.Device) {
		if s.seen {
			j.Say(fault.Failed, 0, "", "block device %s is gone", s.cfg.Device)
		}
		return j.Reading(absent)
	}
	size, err := s.sys.Uint(s.path("size")...) // in sectors of 512 bytes, regardless of the device's own
	switch {
	case err != nil:
		j.Fail(err)
	case size == 0 && s.seen:
		j.Say(fault.Failed, 0, "", "%s has lost its capacity", s.cfg.Device)
	case size == 0:
		return j.Reading(s.cfg.Device + " has no medium: its size is 0")
	default:
		s.seen = true
		gb := float64(size) * 512 / 1e9
		j.Say(fault.Normal, gb, "GB", "%s is there, %.1f GB", s.cfg.Device, gb)
	}
	s.state(j)
	s.readOnly(j)
	s.progress(j)
	return j.Reading(absent)
}

func (s *blockdevSource) path(file string) []string {
	return []string{"class/block", s.cfg.Device, file}
}

// state reads the driver's state of the device: NVMe controllers'
// (drivers/nvme/host/core.c, nvme_sysfs_show_state) and SCSI devices'
// (drivers/scsi/scsi_sysfs.c, sdev_states). Other drivers have none.
func (s *blockdevSource) state(j *source.Judge) {
	state, err := s.sys.Text(s.path("device/state")...)
	if err != nil {
		if !source.Missing(err) {
			j.Fail(err)
		}
		return
	}
	switch state {
	case "live", "running":
		j.Say(fault.Normal, 0, "", "%s is %s", s.cfg.Device, state)
	case "new", "resetting", "connecting", // NVMe
		"created", "blocked", "created-blocked", "quiesce": // SCSI
		j.Say(fault.Sick, 0, "", "%s is %s", s.cfg.Device, state)
	case "deleting", "deleting (no IO)", "dead", // NVMe
		"cancel", "deleted", "offline", "transport-offline": // SCSI
		j.Say(fault.Failed, 0, "", "%s is %s", s.cfg.Device, state)
	default:
		j.Fail(s.sys.Bad(fmt.Errorf("state %.40q is not one that is known", state), s.path("device/state")...))
	}
}

func (s *blockdevSource) readOnly(j *source.Judge) {
	ro, err := s.sys.Uint(s.path("ro")...)
	switch {
	case err != nil:
		j.Fail(err)
	case ro > 1:
		j.Fail(s.sys.Bad(fmt.Errorf("holds %d: want 0 or 1", ro), s.path("ro")...))
	case ro == 1:
		j.Say(fault.Sick, 0, "", "%s is read-only", s.cfg.Device)
	}
}

// progress reads the I/O counters (Documentation/block/stat.rst) and notices requests that stay in
// flight while none completes.
func (s *blockdevSource) progress(j *source.Judge) {
	text, err := s.sys.Text(s.path("stat")...)
	if err != nil {
		if !source.Missing(err) {
			j.Fail(err)
		}
		return
	}
	done, inFlight, err := parseStat(text)
	if err != nil {
		j.Fail(s.sys.Bad(err, s.path("stat")...))
		return
	}
	now := s.cfg.Clock()
	if !s.waiting || inFlight == 0 || done != s.done {
		s.done, s.waiting, s.since = done, inFlight > 0, now
		return
	}
	if held := now.Sub(s.since); held >= stalled {
		j.Within(stalled, fault.Sick, held.Seconds(), "s", "%s: %d requests in flight, none completed for %v", s.cfg.Device, inFlight,
			held.Round(time.Second))
	}
}

// parseStat returns the numbers of completed requests and of requests in flight. The file has 11 fields, 15 since Linux
// 4.18 (discards), 17 since 5.5 (flushes).
func parseStat(text string) (done, inFlight uint64, err error) {
	fields := strings.Fields(text)
	if len(fields) < 11 {
		return 0, 0, fmt.Errorf("%d fields: want 11 or more", len(fields))
	}
	for _, f := range []struct {
		at  int
		sum *uint64
	}{{0, &done}, {4, &done}, {8, &inFlight}, {11, &done}, {15, &done}} {
		if f.at >= len(fields) {
			break
		}
		n, err := strconv.ParseUint(fields[f.at], 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("field %d is %.40q: want a number of 0 or more", f.at+1, fields[f.at])
		}
		*f.sum += n
	}
	return done, inFlight, nil
}
