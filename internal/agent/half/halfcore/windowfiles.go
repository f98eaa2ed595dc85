package halfcore

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// FileID names a file of the state directory that both halves of a node need, and that a window carries if each half has
// a kernel and so a state directory of its own.
type FileID uint8

// The files.
const (
	FileRevoked      FileID = iota + 1 // list of revoked certificates, from either half: the higher version wins
	FilePeers                          // peers from the supervisors: DNP half to host half
	FileRenewRequest                   // request for a certificate: DNP half to host half
	FileRenewAnswer                    // its answer: host half to DNP half

	numFiles = int(FileRenewAnswer)
)

// String returns revoked, peers, renew-request or renew-answer.
func (id FileID) String() string {
	names := [...]string{"revoked", "peers", "renew-request", "renew-answer"}
	if i := int(id) - 1; i >= 0 && i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("FileID(%d)", uint8(id))
}

// From returns the half from which the file comes; 0: either.
func (id FileID) From() fault.Half {
	switch id {
	case FilePeers, FileRenewRequest:
		return fault.HalfDNP
	case FileRenewAnswer:
		return fault.HalfHost
	default:
		return 0
	}
}

// Messages about files are payloads of the mailbox type Files. All numbers are big-endian. The first byte is the kind:
//
//	1 state: for each file that the sender has, its id (1), version (8), size (4), and SHA-256 (32)
//	2 want:  id (1), SHA-256 (32), and offset of the next piece (4)
//	3 piece: as want, and 1 to FilePiece bytes
const (
	fileState = 1
	fileWant  = 2
	filePiece = 3

	fileEntry = 1 + 8 + 4 + sha256.Size
	fileHead  = 1 + 1 + sha256.Size + 4

	// FilePiece is the largest part of a file in one message, in bytes.
	FilePiece = 4096
	// fileAnswers bounds the pieces that an end sends between two ticks.
	fileAnswers = 512
	// fileRefused is how long an end does not ask again for content that it has refused.
	fileRefused = time.Minute
)

// ErrFileMessage is wrapped by the errors of FileExchange.Hear: the message is not used.
var ErrFileMessage = errors.New("message about files of the window")

// HeldFile is the state of one file at one end.
type HeldFile struct {
	ID      FileID
	Version uint64 // in force; only of the list of revoked certificates
	Data    []byte // nil: no such file
	Most    int    // bytes
}

// fileName is what an end states about a file.
type fileName struct {
	version uint64
	size    uint32
	sum     [sha256.Size]byte
}

type fileEnd struct {
	held    HeldFile
	own     fileName
	other   fileName  // as the other end stated it last
	refused fileName  // content that this end has refused
	until   time.Time // of the refusal
	want    fileName  // being received; size 0: nothing
	got     []byte
	moved   bool // a piece has arrived since the tick before
}

// FileExchange is one end of the exchange of files through a window. Each end states its files once a second, and asks
// for content that it lacks, piece by piece. So nothing has to be remembered about lost messages. It is pure.
type FileExchange struct {
	half    fault.Half // of this end
	files   [numFiles + 1]fileEnd
	answers int // pieces sent since the tick before
}

// NewFileExchange returns the end of a half.
func NewFileExchange(half fault.Half) *FileExchange { return &FileExchange{half: half} }

// Hold tells the machine the present state of a file at this end.
func (x *FileExchange) Hold(f HeldFile) {
	e := &x.files[f.ID]
	if e.held.Most == f.Most && e.held.Version == f.Version && bytes.Equal(e.held.Data, f.Data) {
		return
	}
	e.held = f
	e.own = fileName{version: f.Version, size: uint32(len(f.Data))}
	if len(f.Data) > 0 {
		e.own.sum = sha256.Sum256(f.Data)
	}
}

// Tick returns the messages of one second: the state of all files, and questions for pieces that did not come.
func (x *FileExchange) Tick() [][]byte {
	x.answers = 0
	state := []byte{fileState}
	for i := range x.files {
		e := &x.files[i]
		if e.own.size == 0 {
			continue
		}
		state = binary.BigEndian.AppendUint64(append(state, byte(i)), e.own.version)
		state = append(binary.BigEndian.AppendUint32(state, e.own.size), e.own.sum[:]...)
	}
	out := [][]byte{state}
	for i := range x.files {
		e := &x.files[i]
		if e.want.size > 0 && !e.moved {
			out = append(out, e.ask(FileID(i)))
		}
		e.moved = false
	}
	return out
}

// Version returns the version of a file that the other end stated last, and 0 if it stated none.
func (x *FileExchange) Version(id FileID) uint64 { return x.files[id].other.version }

// Forget forgets all that the other end stated: another process is there.
func (x *FileExchange) Forget() {
	for i := range x.files {
		e := &x.files[i]
		e.other, e.want, e.got = fileName{}, fileName{}, nil
	}
}

// Refuse notes that the content of a file, which Hear returned, is not used.
func (x *FileExchange) Refuse(now time.Time, id FileID, data []byte) {
	e := &x.files[id]
	e.refused, e.until = fileName{size: uint32(len(data)), sum: sha256.Sum256(data)}, now.Add(fileRefused)
}

// Hear takes a message of the other end. It returns messages to send, and a file that is complete, for the caller to
// verify and to store.
func (x *FileExchange) Hear(now time.Time, b []byte) (send [][]byte, got HeldFile, err error) {
	if len(b) == 0 {
		return nil, got, fmt.Errorf("%w: 0 bytes: want at least 1", ErrFileMessage)
	}
	switch b[0] {
	case fileState:
		send, err = x.onState(now, b[1:])
	case fileWant, filePiece:
		return x.onPiece(b)
	default:
		err = fmt.Errorf("%w: kind is %d: want 1 to 3", ErrFileMessage, b[0])
	}
	return send, got, err
}

func (x *FileExchange) onState(now time.Time, b []byte) (send [][]byte, err error) {
	if len(b)%fileEntry != 0 || len(b) > numFiles*fileEntry*4 { // a later version may have more files
		return nil, fmt.Errorf("%w: state of %d bytes: want entries of %d", ErrFileMessage, len(b), fileEntry)
	}
	var stated [numFiles + 1]fileName
	for ; len(b) > 0; b = b[fileEntry:] {
		if id := int(b[0]); id >= 1 && id <= numFiles {
			stated[id] = fileName{binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint32(b[9:]), [sha256.Size]byte(b[13:fileEntry])}
		}
	}
	for id := FileRevoked; int(id) <= numFiles; id++ {
		e := &x.files[id]
		e.other = stated[id]
		switch {
		case !x.wants(now, id):
			e.want, e.got = fileName{}, nil
		case e.want != e.other:
			e.want, e.got = e.other, nil
			send = append(send, e.ask(id))
		}
	}
	return send, nil
}

// wants reports whether this end should have the other end's content of a file.
func (x *FileExchange) wants(now time.Time, id FileID) bool {
	e := &x.files[id]
	o := e.other
	switch {
	case o.size == 0 || int64(o.size) > int64(e.held.Most) || o.sum == e.own.sum:
		return false
	case o.size == e.refused.size && o.sum == e.refused.sum && now.Before(e.until):
		return false
	case id.From() == 0:
		return o.version > e.own.version
	}
	return id.From() == x.half.Other()
}

// onPiece answers a question, or takes a piece.
func (x *FileExchange) onPiece(b []byte) (send [][]byte, got HeldFile, err error) {
	if len(b) < fileHead || b[1] < 1 || int(b[1]) > numFiles || len(b)-fileHead > FilePiece || b[0] == fileWant && len(b) != fileHead {
		return nil, got, fmt.Errorf("%w: question or piece of %d bytes: want a head of %d bytes for file 1 to %d, and a piece of at most %d",
			ErrFileMessage, len(b), fileHead, numFiles, FilePiece)
	}
	id := FileID(b[1])
	e, sum, at := &x.files[id], [sha256.Size]byte(b[2:]), binary.BigEndian.Uint32(b[fileHead-4:])
	if b[0] == fileWant {
		if sum != e.own.sum || at >= e.own.size || x.answers >= fileAnswers {
			return nil, got, nil // the other end asks again when it knows the new content
		}
		x.answers++
		data := e.held.Data[at:]
		return [][]byte{append(head(filePiece, id, sum, at), data[:min(len(data), FilePiece)]...)}, got, nil
	}
	data := b[fileHead:]
	if e.want.size == 0 || sum != e.want.sum || int(at) != len(e.got) || len(data) == 0 {
		return nil, got, nil // late, or repeated
	}
	e.moved = true
	if e.got = append(e.got, data...); len(e.got) < int(e.want.size) {
		return [][]byte{e.ask(id)}, got, nil
	}
	whole, want := e.got, e.want
	e.want, e.got = fileName{}, nil
	if len(whole) != int(want.size) || sha256.Sum256(whole) != want.sum {
		return nil, got, fmt.Errorf("%w: %s of %d bytes does not match its SHA-256", ErrFileMessage, id, len(whole))
	}
	return nil, HeldFile{ID: id, Version: want.version, Data: slices.Clip(whole)}, nil
}

// ask returns the question for the next piece.
func (e *fileEnd) ask(id FileID) []byte { return head(fileWant, id, e.want.sum, uint32(len(e.got))) }

func head(kind byte, id FileID, sum [sha256.Size]byte, at uint32) []byte {
	return binary.BigEndian.AppendUint32(append([]byte{kind, byte(id)}, sum[:]...), at)
}
