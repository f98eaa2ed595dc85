package keys

import (
	"crypto/ecdh"
	"encoding/binary"
	"fmt"
)

// pathLabel is the purpose of a path's secret.
const pathLabel = "lofamo.v1 path session"

// PathExchange is what both ends know of one PathRequest and the PathReply to it, and bind the secret of
// their session to.
type PathExchange struct {
	Half       string // who asked: "<node>/<half>", as in its certificate
	Epoch, ID  uint64 // of the request
	Supervisor string // who replied
	Session    uint64 // the session's name
}

// Secret returns the key of the session. private is the own key of this exchange, peer the public one
// that the other end sent.
func (x PathExchange) Secret(private *ecdh.PrivateKey, peer []byte) ([Size]byte, error) {
	numbers := binary.BigEndian.AppendUint64(nil, x.Epoch)
	numbers = binary.BigEndian.AppendUint64(numbers, x.ID)
	numbers = binary.BigEndian.AppendUint64(numbers, x.Session)
	secret, err := Agree(private, peer, pathLabel, []byte(x.Half), []byte(x.Supervisor), numbers)
	if err != nil {
		return secret, fmt.Errorf("session %#x of %s with %s: %w", x.Session, x.Half, x.Supervisor, err)
	}
	return secret, nil
}
