package servicenet

import (
	"crypto/ecdh"
	"encoding/binary"
	"fmt"
)

// pathLabel is the purpose of a path's secret.
const pathLabel = "lofamo.v1 path session"

// PathExchange holds both ends' knowledge of one PathRequest and the PathReply. The secret of their session is bound
// to these values.
type PathExchange struct {
	Half       string // the requester: "<node>/<half>", as in its certificate
	Epoch, ID  uint64 // of the request
	Supervisor string // the replier
	Session    uint64 // the session's name
}

// Secret returns the key of the session. private is the own key of this exchange, peer the public one
// that the other end sent.
func (x PathExchange) Secret(private *ecdh.PrivateKey, peer []byte) ([KeySize]byte, error) {
	numbers := binary.BigEndian.AppendUint64(nil, x.Epoch)
	numbers = binary.BigEndian.AppendUint64(numbers, x.ID)
	numbers = binary.BigEndian.AppendUint64(numbers, x.Session)
	secret, err := AgreeKey(private, peer, pathLabel, []byte(x.Half), []byte(x.Supervisor), numbers)
	if err != nil {
		return secret, fmt.Errorf("session %#x of %s with %s: %w", x.Session, x.Half, x.Supervisor, err)
	}
	return secret, nil
}
