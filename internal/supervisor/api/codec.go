package api

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// encoded is a message that is already encoded, so that a message for many watchers is encoded once.
type encoded mem.BufferSlice

// codec is gRPC's codec for protobuf, extended by encoded messages.
type codec struct{ encoding.CodecV2 }

// Codec returns the codec that a server of this API must have (grpc.ForceServerCodecV2).
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if e, ok := v.(encoded); ok {
		return mem.BufferSlice(e), nil
	}
	return c.CodecV2.Marshal(v)
}

// asEncoded returns a message made of pieces, none of which is changed or freed.
func asEncoded(pieces [][]byte) encoded {
	out := make(encoded, len(pieces))
	for i, p := range pieces {
		out[i] = mem.SliceBuffer(p)
	}
	return out
}
