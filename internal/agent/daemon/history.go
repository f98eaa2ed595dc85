package daemon

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/agent/storage"
)

// tellEvery is the interval at which halves get unchanged records too: a message may have been lost, or a half may be
// new.
const tellEvery = 5 * time.Second

// RecoveryFile returns the name of the file in a state directory that holds the daemon's history of a half.
func RecoveryFile(h fault.Half) string { return h.String() + ".recovery.json" }

// recoveryFile is the content of that file.
type recoveryFile struct {
	Boot    string                   `json:"boot"` // the machine's boot id: the times are of its monotonic clock
	History halfcore.RecoveryHistory `json:"history"`
}

// ReadRecovery returns the history of a half that a daemon has stored since the machine booted; nil: there is none.
func ReadRecovery(stateDir string, h fault.Half) (*halfcore.RecoveryHistory, error) {
	path := filepath.Join(stateDir, RecoveryFile(h))
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("recovery file: %w", err)
	}
	boot, err := storage.BootID()
	if err != nil {
		return nil, err
	}
	history, err := decodeRecovery(b, h, hex.EncodeToString(boot[:]))
	if err != nil {
		return nil, fmt.Errorf("recovery file %s: %w", path, err)
	}
	return history, nil
}

// decodeRecovery decodes a half's file. It returns nil if the file is from before the last boot of the machine.
func decodeRecovery(b []byte, h fault.Half, boot string) (*halfcore.RecoveryHistory, error) {
	var f recoveryFile
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, err
	}
	if f.Boot != boot {
		return nil, nil
	}
	if f.History.Record.Half != h {
		return nil, fmt.Errorf("record.half: given %s: want %s", f.History.Record.Half, h)
	}
	if err := f.History.Validate(); err != nil {
		return nil, err
	}
	return &f.History, nil
}

func (d *daemon) loadHistory(h fault.Half) (*halfcore.RecoveryHistory, error) {
	return ReadRecovery(d.cfg.Agent.StateDir, h)
}

// writeHistory replaces the file atomically, so that readers find either the old one or the new one. The file need not
// survive the machine.
func (d *daemon) writeHistory(h fault.Half, history halfcore.RecoveryHistory) error {
	boot, err := storage.BootID()
	if err != nil {
		return err
	}
	b, err := json.Marshal(recoveryFile{Boot: hex.EncodeToString(boot[:]), History: history})
	if err != nil {
		return err
	}
	path := d.statePath(RecoveryFile(h))
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path+".new"))
	}
	return os.Rename(path+".new", path)
}

// noteKept logs when the histories can no longer be written, and when they can again.
func (d *daemon) noteKept(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unkept.Set(d.log, "keeping the history of restarts", err)
}

// tell sends the records of this daemon's halves to both halves. A half that is absent or behind gets them later.
func (d *daemon) tell() {
	d.telling.Lock() // the newest record must be the last to go out
	defer d.telling.Unlock()
	for _, c := range d.halves {
		c.mu.Lock()
		r, known := c.record, c.begun || c.record.State != halfcore.Stopped
		c.mu.Unlock()
		if !known {
			continue
		}
		b, err := r.Encode()
		if err != nil {
			continue
		}
		for _, to := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
			_ = mailbox.Tell(d.cfg.Agent.StateDir, to, mailbox.Message{Type: mailbox.Recovery, Payload: b})
		}
	}
}
