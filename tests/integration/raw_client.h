// A client that speaks just enough HTTP/2 to ask for something, and then never reads: what a stuck
// or hostile peer looks like to the server.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace fuseblock::testing {

class RawClient {
 public:
  // Connects to "127.0.0.1:PORT" and sends nothing.
  explicit RawClient(const std::string& address) {
    const size_t colon = address.rfind(':');
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + colon + 1)));
    inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
    socket_ = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) std::abort();
  }
  ~RawClient() { close(socket_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void Send(const std::string& bytes) const {
    if (send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(bytes.size())) {
      std::abort();
    }
  }
  // The connection's preface, with a window of 0: the server may not send a byte of any answer.
  void SendPreface() const {
    const std::string no_window("\x00\x04\x00\x00\x00\x00", 6);
    Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, no_window));
  }
  // Opens a call of that method on stream 1; with a message, sends it and half-closes.
  void SendCall(const std::string& method) const { Send(Headers(method)); }
  void SendCall(const std::string& method, const std::string& message) const {
    const std::string framed = std::string(1, '\0') + Number(message.size(), 4) + message;
    Send(Headers(method) + Frame(kData, kEndStream, 1, framed));
  }

 private:
  enum Type : uint8_t { kData = 0, kHeaders = 1, kSettings = 4 };
  enum Flag : uint8_t { kEndStream = 1, kEndHeaders = 4 };

  static std::string Number(size_t value, int bytes) {
    std::string out;
    for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(value >> (8 * i));
    return out;
  }
  static std::string Frame(Type type, uint8_t flags, uint32_t stream, const std::string& payload) {
    return Number(payload.size(), 3) + static_cast<char>(type) + static_cast<char>(flags) +
           Number(stream, 4) + payload;
  }
  static std::string Headers(const std::string& method) {
    std::string block;
    // Literals without indexing and without Huffman coding, each shorter than 127 bytes.
    const auto add = [&block](const std::string& name, const std::string& value) {
      block += std::string(1, '\0') + static_cast<char>(name.size()) + name +
               static_cast<char>(value.size()) + value;
    };
    add(":method", "POST");
    add(":scheme", "http");
    add(":path", method);
    add(":authority", "stuck");
    add("te", "trailers");
    add("content-type", "application/grpc");
    return Frame(kHeaders, kEndHeaders, 1, block);
  }

  int socket_ = -1;
};

}  // namespace fuseblock::testing
