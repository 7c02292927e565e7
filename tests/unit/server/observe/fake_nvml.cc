// Stands in for NVIDIA's management library where there is no GPU: three GPUs, of which the second
// does not answer.
extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 3;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  static int gpus[3];
  *handle = &gpus[index];
  gpus[index] = static_cast<int>(index);
  return index == 1 ? 15 : 0;  // 15: the GPU is lost
}
int nvmlDeviceGetUtilizationRates(void* handle, unsigned percent[2]) {
  percent[0] = *static_cast<int*>(handle) == 0 ? 25 : 100;
  percent[1] = 7;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* handle, unsigned long long bytes[3]) {
  bytes[0] = 1000;
  bytes[2] = *static_cast<int*>(handle) == 0 ? 300 : 900;
  bytes[1] = bytes[0] - bytes[2];
  return 0;
}
}
